"""LoRA on Megatron linears (arXiv:2106.09685): y = W x + (alpha / dim) B A x with W frozen.

Megatron-Bridge injects the adapters. Here: which modules get one, an initialisation that does not depend on the
parallel layout, switching adapters off for the reference policy, and the proof that all of them reach the engine.
"""

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.bridge.models.conversion.model_bridge import _megatron_local_name_to_global
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.lora_layers import LoRALinear
from megatron.bridge.peft.utils import wildcard_match
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import get_model_config

from nemo_rl.config.schema import PeftConfig
from nemo_rl.policy.adapter_folder import AdapterError
from nemo_rl.policy.megatron.experts import merges_here
from nemo_rl.policy.megatron.shards import Cut, cut_of, own_piece, whole_shape

logger = logging.getLogger(__name__)

DEFAULT_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


class GlobalLayerLoRA(LoRA):
    """Bridge's LoRA, whose patterns mean the model's layers. Bridge alone matches the names of a pipeline stage, which
    counts its layers from 0: `*.layers.0.*` would pick one layer in every stage."""

    first_layer = 0
    fitting: frozenset[str] = frozenset()
    """Patterns that some module's name fits."""

    def match(self, m: torch.nn.Module, name: str | None = None, prefix: str | None = None) -> tuple[str, str] | None:
        prefix = prefix and re.sub(r"\blayers\.(\d+)", lambda n: f"layers.{int(n[1]) + self.first_layer}", prefix)
        whole = f"{prefix}.{name}" if prefix else str(name)
        patterns = [*self.target_modules, *self.exclude_modules]
        self.fitting |= {pattern for pattern in patterns if name == pattern or wildcard_match(pattern, whole)}
        matched: tuple[str, str] | None = super().match(m, name, prefix)
        return matched

    def transform(self, module: torch.nn.Module, name: str | None = None, prefix: str | None = None) -> torch.nn.Module:
        wrapped: torch.nn.Module = super().transform(module, name, prefix)
        # known by the name in Bridge's mappings: Bridge's class of such linears exists with transformer-engine only
        if wrapped is not module and "post_layernorm" in dict(module.named_children()):
            return PostNormLoRALinear(module, wrapped.adapter)
        return wrapped


class PostNormLoRALinear(LoRALinear):
    """norm((W + B A) x) for a linear whose class adds a norm to its output. Bridge alone computes norm(W x) + B A x,
    which is not what its merged export computes."""

    def base_linear_forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any, torch.Tensor]:
        linear = self.to_wrap
        output, bias = super(type(linear), linear).forward(x, *args, **kwargs)  # of the linear without its norm
        return output, bias, x

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, bias = super().forward(x, *args, **kwargs)
        return self.to_wrap.post_layernorm(output), bias


def build_lora(peft: PeftConfig, *, tied: bool) -> GlobalLayerLoRA | None:
    """The Bridge LoRA transform, or None when adapters are off.

    Empty `target_modules` means every linear of the transformer layers. The output layer is never in that default;
    asked for by name on a model with tied embeddings it is an AdapterError, since a merged export has no place for it.
    """
    if not peft.enabled:
        return None
    targets = list(peft.target_modules)
    if tied and any(wildcard_match(target, "output_layer") for target in targets):
        raise AdapterError(
            "policy.megatron_cfg.peft.target_modules names output_layer, but this model ties it to the embedding: "
            "its adapter would train and never reach the rollout engine; remove it from target_modules"
        )
    if not targets and not peft.exclude_modules:
        targets = list(DEFAULT_TARGETS)
    if tied:
        logger.info("the output layer is tied to the embedding and gets no adapter")
    return GlobalLayerLoRA(
        target_modules=targets,
        exclude_modules=[*peft.exclude_modules, "output_layer"] if not targets else [],
        dim=peft.dim,
        alpha=peft.alpha,
        dropout=peft.dropout,
        dropout_position=peft.dropout_position,
        lora_A_init_method=peft.lora_A_init_method,
        lora_B_init_method=peft.lora_B_init_method,
    )


def inject(lora: GlobalLayerLoRA, chunks: list[torch.nn.Module], peft: PeftConfig) -> list[torch.nn.Module]:
    """Freeze the chunks and give the targeted modules their adapters. Collective over the pipeline.

    Raises AdapterError if tensor parallelism cannot cut the rank, or if a name in `peft` fits no module of any stage.
    """
    tp = parallel_state.get_tensor_model_parallel_world_size()
    if lora.dim % tp:
        raise AdapterError(
            f"policy.megatron_cfg.peft.dim={lora.dim} must be a multiple of "
            f"policy.megatron_cfg.tensor_model_parallel_size={tp}: Megatron cuts A along its rank"
        )
    lora.first_layer = get_transformer_layer_offset(get_model_config(chunks[0]))
    chunks = lora(chunks, training=True)
    fitting: list[Any] = [None] * parallel_state.get_pipeline_model_parallel_world_size()
    torch.distributed.all_gather_object(fitting, lora.fitting, group=parallel_state.get_pipeline_model_parallel_group())
    for key in ("target_modules", "exclude_modules"):
        if missing := [name for name in getattr(peft, key) if name not in set().union(*fitting)]:
            raise AdapterError(
                f"policy.megatron_cfg.peft.{key}={missing} fits no linear of this model; "
                f"names are {', '.join(DEFAULT_TARGETS)} or patterns like *.layers.0.*.linear_qkv"
            )
    return chunks


def global_name(modules: list[torch.nn.Module], name: str, chunk: int) -> str:
    """A parameter's name with layers counted over all pipeline stages and experts over all ranks."""
    # Bridge leaves an expert its number within the rank where it sees that the name is an adapter's.
    base, adapter, matrix = name.partition(".adapter.")
    return str(_megatron_local_name_to_global(modules, get_model_config(modules[0]), base, chunk)) + adapter + matrix


class AdapterSet:
    """The adapters of this rank's model chunks, known by their global (layout-independent) names."""

    def __init__(self, lora: LoRA, modules: list[torch.nn.Module]) -> None:
        self.lora = lora
        self.modules = modules
        self.parameters: dict[str, torch.nn.Parameter] = {
            global_name(modules, name, chunk): parameter
            for chunk, module in enumerate(modules)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def cut_of(self, name: str) -> Cut | None:
        """How tensor parallelism cuts the adapter matrix of this global name."""
        return cut_of(name, self.parameters[name], bool(get_model_config(self.modules[0]).gated_linear_unit))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context the model computes what its frozen base computes."""
        with self.lora.disable_adapter(self.modules):
            yield

    def check_exportable(self, bridge: Any) -> None:
        """Raise AdapterError unless every trainable adapter is consumed by the merged export. Collective."""
        model_bridge = bridge._model_bridge
        tasks = bridge.get_conversion_tasks(self.modules)
        exported = {
            t.global_param_name.partition(".to_wrap.weight")[0] for t in tasks if ".to_wrap." in t.global_param_name
        }
        merged = set(model_bridge.build_adapter_conversion_tasks(self.modules))
        merged |= {t.global_param_name.partition(".to_wrap.weight")[0] for t in tasks if merges_here(t)}
        trained = {name.partition(".adapter.")[0] for name in self.parameters if ".adapter." in name}
        lost = sorted(trained - (exported & merged))
        if lost:
            raise AdapterError(
                f"{len(lost)} of {len(trained)} trainable adapters would never reach the rollout engine, first: "
                f"{lost[0]}; take these modules out of policy.megatron_cfg.peft.target_modules"
            )


def initialise_adapters(adapters: AdapterSet, peft: PeftConfig, seed: int) -> None:
    """Draw every A and B whole, from a generator seeded by its global name, and keep this rank's slice.

    So the same seed gives the same adapters at every TP, PP and DP size; Megatron's own initialisation of sharded
    matrices gives neither the same draw nor the same scale.
    """
    methods = {"linear_in": peft.lora_A_init_method, "linear_out": peft.lora_B_init_method}
    for name, parameter in adapters.parameters.items():
        method = next((m for part, m in methods.items() if f".{part}." in name), None)
        if method is None:
            continue
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        cut = adapters.cut_of(name)
        full = torch.empty(whole_shape(parameter, cut), dtype=torch.float32)
        for matrix in full if full.ndim == 3 else [full]:
            _INIT[method](matrix, generator)
        with torch.no_grad():
            parameter.copy_(own_piece(full, cut))


_INIT: dict[str, Callable[[torch.Tensor, torch.Generator], Any]] = {
    "xavier": lambda w, g: torch.nn.init.xavier_normal_(w, generator=g),
    "kaiming": lambda w, g: torch.nn.init.kaiming_uniform_(w, a=math.sqrt(5), generator=g),
    "normal": lambda w, g: torch.nn.init.normal_(w, std=0.2, generator=g),
    "zero": lambda w, g: torch.nn.init.zeros_(w),
}
