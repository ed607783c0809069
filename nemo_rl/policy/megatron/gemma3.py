"""Gemma 3: what Megatron-Bridge can say of it, and its layers without transformer-engine.

A layer norms the output of its attention and of its MLP before either joins the residual; all norms multiply by 1 + w.
Of every few layers one sees the whole row and the others a window of it, each kind with a rotary base of its own.
Megatron-Bridge builds embedding, rotary tables and attention; what it takes from transformer-engine is here.
"""

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.bridge.models.gemma.gemma3_provider import (
    Gemma3ModelProvider,
    Gemma3SelfAttention,
    _is_local_attn_layer,
)
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import ModuleSpec, TransformerConfig, TransformerLayer, TransformerLayerSubmodules
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from nemo_rl.policy.megatron.local_spec import LocalAttention, LocalRMSNorm

# What the conversion takes for granted, and would get wrong in silence otherwise.
_TAKEN_FOR_GRANTED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "tie_word_embeddings": True,
}


def is_gemma3_text(provider: Any) -> bool:
    """Whether this is Gemma 3 without its vision tower, which has a provider derived from this one."""
    return type(provider) is Gemma3ModelProvider


def configure_gemma3(provider: Any, hf_config: Any) -> None:
    """Tell the provider which layers are local: Megatron-Bridge assumes the published models' 5 of 6.

    Raises ValueError for a model that Megatron-Bridge would convert to another one.
    """
    odd = [f"{key}={getattr(hf_config, key)!r}" for key, value in _TAKEN_FOR_GRANTED.items()
           if (getattr(hf_config, key) or None) != (value or None)]  # fmt: skip
    kinds = list(hf_config.layer_types)
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    repeated = ["sliding_attention" if i % period else "full_attention" for i in range(1, len(kinds) + 1)]
    if kinds != repeated:
        odd.append("layer_types that do not repeat local layers and then a global one")
    ropes = {kind: hf_config.rope_parameters[kind]["rope_type"] for kind in ("sliding_attention", "full_attention")}
    if ropes["sliding_attention"] != "default" or ropes["full_attention"] not in ("default", "linear"):
        odd.append(f"rope types {ropes}")
    if odd:
        raise ValueError(f"Megatron-Bridge converts no Gemma 3 with {', '.join(odd)}")
    provider.interleaved_attn_pattern = (period - 1, 1)


def use_local_layers(provider: Gemma3ModelProvider) -> None:
    """Layers and activation that need neither transformer-engine nor a compiler."""
    provider.transformer_layer_spec = gemma3_block_spec
    provider.activation_func = partial(F.gelu, approximate="tanh")


def gemma3_block_spec(config: Gemma3ModelProvider, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """The transformer block of this pipeline stage, as in `local_spec.local_block_spec`."""
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=ZeroCentredRMSNorm,
            self_attention=ModuleSpec(
                module=Gemma3SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=Gemma3Attention,
                    q_layernorm=ZeroCentredRMSNorm,
                    k_layernorm=ZeroCentredRMSNorm,
                    linear_proj=RowParallelLinearPostNorm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=ZeroCentredRMSNorm,
            mlp=ModuleSpec(
                module=MLP,
                submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinearPostNorm),
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    layers = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=ZeroCentredRMSNorm)


class ZeroCentredRMSNorm(LocalRMSNorm):
    """RMSNorm times 1 + w."""

    zero_centred = True

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # 1 + w has few digits left in bfloat16; Hugging Face and vLLM compute it in float32 too
        return F.rms_norm(x.float(), self.normalized_shape, 1 + self.weight.float(), self.eps).type_as(x)


class RowParallelLinearPostNorm(RowParallelLinear):
    """Row-parallel linear and the norm of its summed output; with an adapter see `lora.PostNormLoRALinear`."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **how: Any) -> None:
        super().__init__(input_size, output_size, config=config, **how)
        self.post_layernorm: torch.nn.Module = ZeroCentredRMSNorm(config, output_size, eps=config.layernorm_epsilon)

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias


class Gemma3Attention(LocalAttention):
    """Attention over the whole row or a window of it, by the number of the layer."""

    def __init__(self, config: Any, layer_number: int, *args: Any, **how: Any) -> None:
        whole_row = copy.copy(config)
        whole_row.window_size = None
        super().__init__(whole_row, layer_number, *args, **how)
        if _is_local_attn_layer(layer_number, config.interleaved_attn_pattern):
            self.window = config.window_size
