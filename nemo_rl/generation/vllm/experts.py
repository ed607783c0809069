"""Weights of experts, which vLLM keeps in its kernel's own layout, by vLLM's own layerwise reload.

After loading, vLLM repacks experts for its CPU kernel and reorders their halves or blocks for FlashInfer's: a
checkpoint's tensor does not fit over what the model then holds, or fits and means something else. The reload collects
a layer's tensors, repacks them as at the first load and copies the result over the old: storage stays where it is.
"""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info


class ExpertReload:
    """The layers of experts of a model; a dense model has none, and then nothing here does anything."""

    def __init__(self, model: torch.nn.Module, model_config: Any) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, RoutedExperts)]
        self.model_config = model_config

    def start(self) -> None:
        """From here to `finish` the layers take tensors of a checkpoint, and keep those that they were given."""
        for layer in self.layers:
            initialize_layerwise_reload(layer)

    def finish(self) -> None:
        """Every layer is back on its storage, whether it got all its tensors, a part of them or none."""
        for layer in self.layers:
            finalize_layerwise_reload(layer, self.model_config)

    def abandon(self) -> None:
        """As `finish`, with the tensors collected so far dropped."""
        for layer in self.layers:
            information = get_layerwise_info(layer)
            information.load_numel = 0
            information.loaded_weights.clear()
        self.finish()
