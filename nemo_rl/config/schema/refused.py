"""Keys that NeMo-RL knows and this project does not build: dropped when "off", else refused by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nemo_rl.config.tree import Tree, get, remove


@dataclass(frozen=True)
class Refused:
    """Why a key is not built, and which values (besides null, false, {} and {enabled: false}) ask for nothing."""

    reason: str
    off: tuple[Any, ...] = ()
    any_value: bool = False
    """The key only matters with a switch that is refused itself, so any value asks for nothing."""

    def is_off(self, value: Any) -> bool:
        if self.any_value or value is None or value is False or value in ({}, []):
            return True
        if isinstance(value, Mapping):
            return value.get("enabled") is False or dict(value) in self.off
        return any(value == off and type(value) is type(off) for off in self.off)


_MOE = "only Megatron's default handling of experts is built"
_FP8 = "8-bit training is not built; use policy.precision"
_SAVE = "checkpoints hold Megatron's distributed format; export with examples/converters"
_DYNAMIC = "dynamic sampling is not built; it would also change the batch that asynchronous GRPO trains on"
_ADVANTAGES = {"name": "grpo", "normalize_rewards": True, "use_leave_one_out_baseline": True, "minus_baseline": True}
_METRICS = "the engine's throughput is logged always, under performance/; there is no logger of its own"

REFUSED: dict[str, Refused] = {
    "grpo.use_dynamic_sampling": Refused(_DYNAMIC),
    "grpo.dynamic_sampling_max_gen_batches": Refused(_DYNAMIC, any_value=True),
    "grpo.batch_multiplier": Refused(_DYNAMIC, off=(1, 1.0)),
    "grpo.reward_scaling": Refused("rewards are used as the environment gives them; scale them there"),
    "grpo.seq_logprob_error_threshold": Refused(
        "use loss_fn.truncated_importance_sampling_type: seq-mask-tis to drop sequences the engine and trainer "
        "disagree on"
    ),
    "grpo.adv_estimator": Refused(
        "set grpo.normalize_rewards and grpo.use_leave_one_out_baseline instead", off=({"name": "grpo"}, _ADVANTAGES)
    ),
    "grpo.calculate_advantages_on_gpu": Refused("advantages are a handful of numbers, computed in the driver"),
    "grpo.val_start_at": Refused("use grpo.val_at_start and grpo.val_period", off=(0,)),
    "grpo.advantage_clip_*": Refused("advantages are not clipped; grpo.normalize_rewards bounds them"),
    "grpo.stop_at_validation_*": Refused("a run ends by grpo.max_num_steps or grpo.max_num_epochs"),
    "grpo.invalid_tool_call_advantage": Refused("penalties belong into the environment's reward"),
    "grpo.malformed_thinking_advantage": Refused("penalties belong into the environment's reward"),
    "grpo.reward_penalties": Refused("penalties belong into the environment's reward"),
    "grpo.reward_shaping.stop_properly_penalty_coef": Refused(
        "use overlong_buffer_penalty, or grpo.overlong_filtering"
    ),
    "loss_fn.use_cispo": Refused("CISPO is not built"),
    "loss_fn.positive_example_nll_weight": Refused("a supervised term is not built", off=(0, 0.0)),
    "data.num_workers": Refused("texts are tokenised once, in the driver", any_value=True),
    "debug.save_rollouts_dir": Refused("every run keeps its rollouts in its run directory"),
    "logger.gpu_monitoring.flush_interval": Refused("samples are written with each step's metrics", any_value=True),
    "logger.tensorboard": Refused("TensorBoard's writer is used with its own defaults"),
    "policy.megatron_cfg.empty_unused_memory_level": Refused("memory is given back at every phase", any_value=True),
    "policy.megatron_cfg.freeze_moe_router": Refused(
        "the router is frozen with LoRA and trained with everything else", any_value=True
    ),
    "checkpointing.model_save_format": Refused(_SAVE, off=("safetensors",)),
    "checkpointing.save_consolidated": Refused(_SAVE),
    "checkpointing.save_optimizer": Refused("a checkpoint without its optimizer cannot resume exactly", off=(True,)),
    "checkpointing.ft_*": Refused("set checkpointing.save_period and keep_top_k"),
    "policy.optimizer": Refused("the optimizer is policy.megatron_cfg.optimizer"),
    "policy.scheduler": Refused("the schedule is policy.megatron_cfg.scheduler"),
    "policy.dtensor_cfg": Refused("Megatron is the one trainer here: use policy.megatron_cfg"),
    "policy.dynamic_batching": Refused("use policy.sequence_packing, which wastes no padding at all"),
    "policy.draft": Refused("speculative decoding with a trained draft model is not built"),
    "policy.reward_model_cfg": Refused("reward models are not trained here"),
    "policy.megatron_cfg.converter_type": Refused("the converter follows from the model", any_value=True),
    "policy.megatron_cfg.expert_tensor_parallel_size": Refused(
        "adapters of experts get wrong gradients above 1 in Megatron-Bridge", off=(1,)
    ),
    "policy.megatron_cfg.moe_router_load_balancing_type": Refused(_MOE, off=("none",)),
    "policy.megatron_cfg.moe_router_bias_update_rate": Refused(_MOE, off=(0, 0.0)),
    "policy.megatron_cfg.moe_token_dispatcher_type": Refused(_MOE, off=("allgather", "alltoall")),
    "policy.megatron_cfg.moe_permute_fusion": Refused(_MOE),
    "policy.megatron_cfg.moe_per_layer_logging": Refused(_MOE),
    "policy.megatron_cfg.moe_enable_deepep": Refused(_MOE),
    "policy.megatron_cfg.moe_shared_expert_overlap": Refused(_MOE),
    "policy.megatron_cfg.fp8_cfg": Refused(_FP8),
    "policy.megatron_cfg.model_overrides": Refused("set policy.hf_config_overrides"),
    "policy.megatron_cfg.checkpoint": Refused("checkpoints are written before the next step starts"),
    "policy.megatron_cfg.use_fused_linear_logprobs": Refused(
        "set policy.logprob_chunk_size to save the logits' memory"
    ),
    "policy.megatron_cfg.force_reconvert_from_hf": Refused("the model is converted in memory at each start"),
    "policy.megatron_cfg.cuda_graph_*": Refused("CUDA graphs of the trainer are not built"),
    "policy.megatron_cfg.fine_grained_activation_offloading": Refused("use activation_checkpointing"),
    "policy.megatron_cfg.recompute_*": Refused("use activation_checkpointing, which recomputes every layer"),
    "policy.megatron_cfg.mtp_*": Refused("multi-token prediction is not trained"),
    "policy.megatron_cfg.use_gloo_process_groups": Refused("the backend follows cluster.accelerator"),
    "policy.megatron_cfg.train_iters": Refused("the run's length is grpo.max_num_steps, sft.max_num_steps"),
    "policy.megatron_cfg.peft.a2a_experimental": Refused("Megatron-Bridge's experimental all-to-all is not built"),
    "policy.offload_optimizer_for_logprob": Refused(
        "the optimizer's state leaves the device while the engine generates, not for log-probabilities"
    ),
    "policy.megatron_cfg.optimizer.fp16": Refused(
        "the optimizer follows policy.precision; set policy.precision=float16"
    ),
    "policy.megatron_cfg.optimizer.optimizer_cpu_offload": Refused(
        "the optimizer's steps run on the device; its state leaves it while the engine generates"
    ),
    "policy.megatron_cfg.optimizer.optimizer_offload_fraction": Refused(
        "the optimizer's steps run on the device", off=(0, 0.0)
    ),
    "policy.megatron_cfg.distributed_data_parallel_config.use_custom_fsdp": Refused(
        "use tensor and pipeline parallelism"
    ),
    "policy.megatron_cfg.distributed_data_parallel_config.data_parallel_sharding_strategy": Refused(
        "it only matters with use_custom_fsdp, which is not built", off=("optim_grads_params", "no_shard")
    ),
    "policy.generation.mcore_generation_config": Refused("vLLM is the one rollout engine; delete this block"),
    "policy.generation.sglang_cfg": Refused("vLLM is the one rollout engine; delete this block"),
    "policy.generation.trtllm_cfg": Refused("vLLM is the one rollout engine; delete this block"),
    "policy.generation.dynamo_cfg": Refused("vLLM is the one rollout engine; delete this block"),
    "policy.generation.refit_transport": Refused("the transport follows from colocated.enabled and the accelerator"),
    "policy.generation.refit_cfg": Refused("set weight_sync"),
    "policy.generation.logprobs_mode": Refused(
        "log-probabilities are those of the distribution sampled from", off=("processed_logprobs",)
    ),
    "policy.generation.port_range_*": Refused("free ports are found by themselves"),
    "policy.generation.vllm_cfg.skip_tokenizer_init": Refused("tokens go in and tokens come out always", off=(True,)),
    "policy.generation.vllm_cfg.load_format": Refused("weights come from the policy", off=("auto", "dummy")),
    "policy.generation.vllm_cfg.use_deep_gemm": Refused(_FP8),
    "policy.generation.vllm_cfg.num_first_layers_in_bf16": Refused(_FP8, off=(0,)),
    "policy.generation.vllm_cfg.num_last_layers_in_bf16": Refused(_FP8, off=(0,)),
    "policy.generation.vllm_cfg.enable_vllm_metrics_logger": Refused(_METRICS),
    "policy.generation.vllm_cfg.vllm_metrics_logger_interval": Refused(_METRICS, any_value=True),
    "policy.generation.vllm_cfg.expose_http_server": Refused("the engine is reached through Ray, not HTTP"),
    "policy.generation.vllm_cfg.http_server_serving_chat_kwargs": Refused(
        "the engine is reached through Ray, not HTTP"
    ),
    "policy.generation.vllm_cfg.tool_parser_plugin": Refused("tools are parsed by the environment"),
    "data.use_multiple_dataloader": Refused("one dataset per run"),
    "data.num_prompts_per_dataloader": Refused("one dataset per run"),
    "data.custom_dataloader": Refused("one dataset per run"),
    "data.*.processor": Refused(
        "prompts are made by prompt_file, system_prompt_file and the chat template",
        off=("math_hf_data_processor", "math_data_processor", "sft_processor"),
    ),
    "env.math.math_verify_impl": Refused("set env.math.verifier", off=("hf_math_verify",)),
    "env.math.verifier_type": Refused("set env.math.verifier", off=("math",)),
    "logger.swanlab_enabled": Refused("use wandb, tensorboard or mlflow"),
    "logger.swanlab": Refused("swanlab_enabled is refused", any_value=True),
    "cluster.segment_size": Refused("Ray chooses the nodes"),
    "cluster.master_port_range*": Refused("free ports are found by themselves"),
    "data_plane": Refused("rollouts travel through Ray's object store"),
    "on_policy_distillation": Refused("distillation is not built"),
}

_SFT_DATA = (
    "conversations are rendered by the chat template, with the generation prompt before each answer as in rollouts"
)

SFT_REFUSED: dict[str, Refused] = {
    "sft.val_micro_batch_size": Refused("set policy.logprob_batch_size; the loss does not depend on it", off=(1,)),
    "data.add_generation_prompt": Refused(_SFT_DATA, off=(True,)),
    "data.add_system_prompt": Refused("set data.default.system_prompt_file"),
    "data.train_data_path": Refused("set data.train.data_path"),
    "data.val_data_path": Refused("set data.validation.data_path"),
    "data.chat_key": Refused("set data.train.chat_key", off=("messages",)),
    "data.system_key": Refused("put the system prompt into the messages"),
    "data.system_prompt": Refused("set data.default.system_prompt_file"),
    "data.tool_key": Refused("tools are not rendered", off=("tools",)),
    "data.use_preserving_dataset": Refused("rows are read as they are"),
    "policy.generation": Refused("nothing is generated; evaluate with examples/run_eval.py"),
}
"""Refused by SFT only."""


def refusal(path: str, table: Mapping[str, Refused]) -> Refused | None:
    """The table's entry for a dotted key or for one that holds it."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        for pattern, entry in table.items():
            # fnmatch's * also matches dots; equal depth keeps `data.*.processor` from reaching further down.
            if pattern.count(".") == end - 1 and fnmatchcase(prefix, pattern):
                return entry
    return None


def drop_refused(tree: Tree, table: Mapping[str, Refused]) -> Iterator[tuple[str, Any, str]]:
    """Remove known keys that are off; yield (key, value, reason) of each one that is not."""
    for path in list(_matches(tree, table)):
        entry, value = table[path[1]], get(tree, path[0])
        if not entry.is_off(value):
            yield path[0], value, entry.reason
        remove(tree, path[0])


def _matches(tree: Mapping[str, Any], table: Mapping[str, Refused], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        pattern = next((p for p in table if p.count(".") == path.count(".") and fnmatchcase(path, p)), None)
        if pattern:
            yield path, pattern
        elif isinstance(value, Mapping):
            yield from _matches(value, table, f"{path}.")
