"""Builds the policy: a Hugging Face model converted by Megatron-Bridge, with adapters, in Megatron's DDP."""

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.models.gpt_provider import default_layer_spec
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.utils import get_model_config

from nemo_rl.config.schema import TrainedPolicyConfig
from nemo_rl.policy.megatron.base_checkpoint import load_base
from nemo_rl.policy.megatron.cpu_shim import teach_bridge_local_layers
from nemo_rl.policy.megatron.experts import Bridge
from nemo_rl.policy.megatron.gemma3 import configure_gemma3, is_gemma3_text, use_local_layers
from nemo_rl.policy.megatron.lora import AdapterSet, build_lora, initialise_adapters, inject
from nemo_rl.policy.megatron.rotary import check_rotary_positions

logger = logging.getLogger(__name__)


@dataclass
class PolicyModel:
    """The live model of one rank: its DDP-wrapped pipeline chunks, the bridge that made it, and its adapters."""

    bridge: Bridge
    chunks: list[Any]
    adapters: AdapterSet | None
    vocab_size: int
    dtype: torch.dtype
    export_tasks: list[Any] | None = None

    @property
    def config(self) -> Any:
        return get_model_config(self.chunks[0])

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The chunks without their DDP wrapper."""
        return [chunk.module for chunk in self.chunks]

    def settle(self) -> None:
        """Wait for updated weights that are still being gathered (`overlap_param_gather`), before they are read other
        than by a forward pass. Collective."""
        for chunk in self.chunks:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{i}.{name}": parameter
            for i, module in enumerate(self.modules)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def frozen(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{i}.{name}": parameter
            for i, module in enumerate(self.modules)
            for name, parameter in module.named_parameters()
            if not parameter.requires_grad
        }

    def sizes(self) -> dict[str, int]:
        """This rank's parameters: `total` and `trainable` ones, and how many of each are experts'."""
        parts = {"trainable": self.trainable(), "frozen": self.frozen()}
        count = {part: sum(p.numel() for p in parameters.values()) for part, parameters in parts.items()}
        experts = {
            part: sum(p.numel() for name, p in parameters.items() if ".experts." in name)
            for part, parameters in parts.items()
        }
        return {
            "total": sum(count.values()),
            "trainable": count["trainable"],
            "total_experts": sum(experts.values()),
            "trainable_experts": experts["trainable"],
        }


def torch_dtype(precision: str) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def build_policy_model(
    policy: TrainedPolicyConfig, model_path: str, seed: int, base: Path | None = None
) -> PolicyModel:
    """Load the weights of `model_path`, or of the Megatron checkpoint `base`, into this rank's shard. Needs
    model-parallel groups; collective."""
    if not has_transformer_engine():
        teach_bridge_local_layers()
    bridge = Bridge.from_hf_pretrained(
        model_path, trust_remote_code=policy.trust_remote_code, **policy.hf_config_overrides
    )
    provider = bridge.to_megatron_provider(load_weights=base is None)
    check_rotary_positions(provider, bridge.hf_pretrained.config)
    dtype = torch_dtype(policy.precision)
    vocab_size = int(bridge.hf_pretrained.config.vocab_size)
    # Rows of zeros are added only where tensor parallelism could not cut the vocabulary otherwise.
    provider.should_pad_vocab = vocab_size % policy.megatron_cfg.tensor_model_parallel_size != 0
    if is_gemma3_text(provider):
        configure_gemma3(provider, bridge.hf_pretrained.config)
    _configure_layout(provider, policy, dtype)
    _configure_kernels(provider, policy)
    lora = build_lora(policy.megatron_cfg.peft, tied=provider.share_embeddings_and_output_weights)
    if base is not None:
        provider.register_pre_wrap_hook(lambda chunks: load_base(chunks, base))
    if lora is not None:
        provider.register_pre_wrap_hook(lambda chunks: inject(lora, chunks, policy.megatron_cfg.peft))
    provider.finalize()
    chunks = provider.provide_distributed_model(
        ddp_config=_ddp_config(policy),
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        mixed_precision_wrapper=None,
        data_parallel_random_init=False,
    )
    for chunk in chunks:
        config = get_model_config(chunk)
        config.finalize_model_grads_func = _finalize_prenormalised_grads
        if chunk.ddp_config.overlap_grad_reduce:
            # Without it every micro-batch would start a reduction, not only the last one.
            config.no_sync_func = chunk.no_sync
    adapters = None
    if lora is not None:
        adapters = AdapterSet(lora, [chunk.module for chunk in chunks])
        initialise_adapters(adapters, policy.megatron_cfg.peft, seed)
    model = PolicyModel(bridge, chunks, adapters, vocab_size, dtype)
    if adapters is not None:
        adapters.check_exportable(bridge)
    return model


def _finalize_prenormalised_grads(chunks: list[Any], num_tokens: Any = None, **groups: Any) -> None:
    """Reduce gradients over ranks. The loss is already divided by the global batch's token count, so nothing is
    divided here: Megatron's own count is dropped."""
    finalize_model_grads(chunks, None, **groups)


def _configure_layout(provider: Any, policy: TrainedPolicyConfig, dtype: torch.dtype) -> None:
    megatron = policy.megatron_cfg
    provider.tensor_model_parallel_size = megatron.tensor_model_parallel_size
    provider.pipeline_model_parallel_size = megatron.pipeline_model_parallel_size
    provider.context_parallel_size = megatron.context_parallel_size
    provider.expert_model_parallel_size = megatron.expert_model_parallel_size
    # Megatron's default cuts experts like everything else; their adapters' gradients and merge are then wrong.
    provider.expert_tensor_parallel_size = 1
    provider.sequence_parallel = megatron.sequence_parallel
    provider.num_layers_in_first_pipeline_stage = megatron.num_layers_in_first_pipeline_stage
    provider.num_layers_in_last_pipeline_stage = megatron.num_layers_in_last_pipeline_stage
    provider.params_dtype = provider.pipeline_dtype = provider.autocast_dtype = dtype
    provider.bf16, provider.fp16 = dtype is torch.bfloat16, dtype is torch.float16
    provider.variable_seq_lengths = megatron.pipeline_model_parallel_size > 1
    # Megatron refuses the default (allgather) with rows of varying length, even for a model without experts.
    provider.moe_token_dispatcher_type = "alltoall"
    # Gradients are summed over data-parallel ranks, not averaged: see _finalize_prenormalised_grads.
    provider.calculate_per_token_loss = True


def _configure_kernels(provider: Any, policy: TrainedPolicyConfig) -> None:
    megatron = policy.megatron_cfg
    provider.apply_rope_fusion = (
        has_transformer_engine() if megatron.apply_rope_fusion is None else megatron.apply_rope_fusion
    )
    provider.bias_activation_fusion = megatron.bias_activation_fusion
    provider.gradient_accumulation_fusion = False
    provider.attention_dropout = provider.hidden_dropout = 0.0
    if megatron.activation_checkpointing:
        provider.recompute_granularity, provider.recompute_method, provider.recompute_num_layers = "full", "uniform", 1
    if provider.num_moe_experts:
        provider.moe_router_dtype = megatron.moe_router_dtype
        provider.moe_aux_loss_coeff = 0.0
        provider.moe_router_load_balancing_type = "none"
        provider.moe_router_bias_update_rate = 0.0  # the router's bias belongs to the base, which does not change
    if not has_transformer_engine():
        use_local_kernels(provider)


def use_local_kernels(provider: Any) -> None:
    """Megatron's local layers and no fused kernels, for where there is no transformer-engine. Raises ValueError for a
    model whose layers they cannot stand for."""
    from nemo_rl.policy.megatron.local_spec import local_block_spec

    logger.info("transformer-engine is not installed: using Megatron's local layers with PyTorch attention")
    if is_gemma3_text(provider):
        use_local_layers(provider)
    elif provider.transformer_layer_spec is default_layer_spec:
        provider.transformer_layer_spec = local_block_spec
    else:
        spec = getattr(provider.transformer_layer_spec, "__name__", "not a function")
        raise ValueError(
            f"this model has layers of its own (Megatron-Bridge's {spec}), which nothing replaces where "
            "transformer-engine is not installed: train it on a GPU"
        )
    provider.masked_softmax_fusion = False
    provider.bias_dropout_fusion = False
    provider.persist_layer_norm = False
    provider.cross_entropy_loss_fusion = False
    provider.moe_grouped_gemm = False
    provider.moe_permute_fusion = False


def has_transformer_engine() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


def _ddp_config(policy: TrainedPolicyConfig) -> DistributedDataParallelConfig:
    ddp, optimizer = policy.megatron_cfg.distributed_data_parallel_config, policy.megatron_cfg.optimizer
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=ddp.grad_reduce_in_fp32,
        overlap_grad_reduce=ddp.overlap_grad_reduce,
        overlap_param_gather=ddp.overlap_param_gather and optimizer.use_distributed_optimizer,
        use_distributed_optimizer=optimizer.use_distributed_optimizer,
        average_in_collective=False,
    )


def initialise_parallel_state(policy: TrainedPolicyConfig, seed: int) -> None:
    """Create Megatron's process groups over the default group and seed its RNG trackers. Collective."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    megatron = policy.megatron_cfg
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=megatron.tensor_model_parallel_size,
        pipeline_model_parallel_size=megatron.pipeline_model_parallel_size,
        context_parallel_size=megatron.context_parallel_size,
        expert_model_parallel_size=megatron.expert_model_parallel_size,
        expert_tensor_parallel_size=1,
    )
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
