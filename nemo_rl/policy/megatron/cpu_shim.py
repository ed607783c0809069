"""Lets Megatron-Core and Megatron-Bridge run on a machine without CUDA (gloo). The only place that does so.

`install()` comes before the first import of Megatron and does nothing where CUDA is present. Every entry says which
call site needs it; nothing in an installed package is edited.
"""

# mypy: disable-error-code="assignment,misc,return-value,method-assign,attr-defined,arg-type"
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def install() -> None:
    """Make `torch.cuda` calls that Megatron issues unconditionally mean the CPU. Idempotent; a no-op with CUDA."""
    if torch.cuda.is_available():
        return
    if importlib.util.find_spec("transformer_engine") is None:
        sys.meta_path.insert(0, _TransformerEngineNames())
    _redirect_torch_cuda()
    _redirect_tensor_methods()
    _redirect_factories()
    _accept_split_sizes_as_tensors()
    import megatron.core.tensor_parallel.random as random

    # The RNG tracker saves and restores generator states by these two functions around every sharded initialisation.
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


class _TransformerEngineNames(importlib.abc.MetaPathFinder):
    """Gives `megatron.bridge.peft.lora_layers`, which names transformer-engine classes at import time in isinstance
    checks, empty classes of those names. Every other module still finds that transformer-engine is not there."""

    _needs_names = "megatron.bridge.peft.lora_layers"

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._needs_names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_with_names(module: types.ModuleType) -> None:
            names = _empty_transformer_engine()
            sys.modules.update(names)
            try:
                execute(module)
            finally:
                for name in names:
                    del sys.modules[name]

        spec.loader.exec_module = execute_with_names
        return spec


def _empty_transformer_engine() -> dict[str, types.ModuleType]:
    package, pytorch = types.ModuleType("transformer_engine"), types.ModuleType("transformer_engine.pytorch")
    for name in ("Linear", "LayerNormLinear", "GroupedLinear"):
        setattr(pytorch, name, type(name, (torch.nn.Module,), {}))
    pytorch.ops = types.SimpleNamespace(Sequential=type("Sequential", (torch.nn.Module,), {}))
    package.pytorch = pytorch
    return {"transformer_engine": package, "transformer_engine.pytorch": pytorch}


class _NoStream:
    """Stands for torch.cuda.Stream and Event: on the CPU everything has already happened."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> "_NoStream":
        return self

    def __exit__(self, *args: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, *args: Any) -> "_NoStream":
        return self

    def elapsed_time(self, *args: Any) -> float:
        return 0.0

    def _nothing(self, *args: Any) -> None: ...

    wait_stream = wait_event = wait = record = synchronize = _nothing


def _redirect_torch_cuda() -> None:
    cuda = torch.cuda
    # Used as `device=torch.cuda.current_device()` by parameters, buffers and pipeline communication.
    cuda.current_device = lambda: torch.device("cpu")
    # Schedules, DDP and the optimizer fence and bracket their work with streams and events.
    cuda.Stream = cuda.Event = _NoStream
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: _NoStream()
    cuda.stream = lambda stream=None: contextlib.nullcontext()
    cuda.device = lambda *args, **kwargs: contextlib.nullcontext()
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    # Megatron asks for Hopper features by capability.
    cuda.get_device_capability = lambda *args, **kwargs: (0, 0)
    # One CPU generator plays both parts; torch.manual_seed() calls manual_seed_all() after seeding it.
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        module.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
        module.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed)) and None
        module.manual_seed_all = lambda seed: None


def _redirect_tensor_methods() -> None:
    # get_model() and the schedules move modules and token counts with .cuda(); buffers are pinned for copies.
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    original = torch.Tensor.type

    def type_as_if_on_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(result, str) and result.startswith("torch.") and ".cuda." not in result:
            return "torch.cuda." + result.removeprefix("torch.")
        return result

    # The optimizers and gradient clipping sort parameters by comparing .type() with "torch.cuda.FloatTensor" etc.
    torch.Tensor.type = type_as_if_on_cuda


def _redirect_factories() -> None:
    # `with torch.device("meta")` finds constructors in a cached set. It has to hold the originals, or Hugging Face
    # models silently keep uninitialised rotary frequencies.
    from torch.utils import _device

    _device._device_constructors()
    names = (
        "tensor",
        "zeros",
        "ones",
        "empty",
        "full",
        "arange",
        "rand",
        "randn",
        "zeros_like",
        "ones_like",
        "empty_like",
    )
    for name in names:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Megatron hard-codes device="cuda" and pinned memory in about ten constructors."""

    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    create.__name__ = factory.__name__
    create.__wrapped__ = factory
    return create


def _accept_split_sizes_as_tensors() -> None:
    """The experts' token dispatcher turns split sizes into lists as it copies them off the GPU, and here leaves them
    tensors."""
    original = torch.distributed.all_to_all_single

    def with_lists(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for name in ("output_split_sizes", "input_split_sizes"):
            if isinstance(kwargs.get(name), torch.Tensor):
                kwargs[name] = kwargs[name].tolist()
        return original(output, input, *args, **kwargs)

    torch.distributed.all_to_all_single = with_lists


_MATCHED_LINEARS = {
    "HAVE_TE_COL_LINEAR": "TEColumnParallelLinear",
    "HAVE_TE_LN_COL_LINEAR": "TELayerNormColumnParallelLinear",
    "HAVE_TE_ROW_LINEAR": "TERowParallelLinear",
}


def teach_bridge_local_layers() -> None:
    """Tell Megatron-Bridge about layers that are not transformer-engine's. Call after importing megatron.bridge.

    Needed wherever the local layer spec is used: (1) the bridges of most families map only the norms that TE fuses
    into the next linear; (2) without TE, its linears are None or mocks, which `peft.utils` and `peft.module_matcher`
    take for the real ones; (3) saving Hugging Face weights imports one predicate of modelopt, an optional package for
    quantisation.
    """
    import megatron.bridge.peft.module_matcher as matcher
    import megatron.bridge.peft.utils as peft_utils
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    if peft_utils.TEColumnParallelGroupedLinear is None:
        peft_utils.HAVE_TE = False
    for flag, linear in _MATCHED_LINEARS.items():
        if not isinstance(getattr(matcher, linear), type):
            setattr(matcher, flag, False)
    if importlib.util.find_spec("modelopt") is None:
        _provide_is_quantized()
    AutoMapping.register_module_type("LocalRMSNorm", "replicated")
    AutoMapping.register_module_type("ZeroCentredRMSNorm", "replicated")
    AutoMapping.register_module_type("RowParallelLinearPostNorm", "row")
    if getattr(MegatronMappingRegistry, "knows_local_norms", False):
        return
    original = MegatronMappingRegistry.__init__
    local_name = {
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
    }

    def init_with_local_norms(self: Any, *mappings: Any) -> None:
        known = {mapping.megatron_param for mapping in mappings}
        twins = [
            AutoMapping(megatron_param=twin, hf_param=mapping.hf_param)
            for mapping in mappings
            for fused, local in local_name.items()
            if mapping.megatron_param.endswith(fused)
            and (twin := mapping.megatron_param.replace(fused, local)) not in known
        ]
        original(self, *mappings, *twins)

    MegatronMappingRegistry.__init__ = init_with_local_norms
    MegatronMappingRegistry.knows_local_norms = True


def _provide_is_quantized() -> None:
    name = "modelopt"
    for part in ("", ".torch", ".quantization", ".utils"):
        name += part
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    sys.modules[name].is_quantized = lambda module: False
