"""`policy.megatron_cfg`: the trainer. Parallelism, adapters, optimizer, schedule."""

from typing import Literal

from pydantic import Field

from nemo_rl.config.schema.section import Section, derived, group

InitMethod = Literal["xavier", "normal", "kaiming", "zero"]


class PeftConfig(Section):
    enabled: bool = Field(False, description="Train LoRA adapters and leave the base model frozen.")
    target_modules: list[str] = Field(
        default_factory=list,
        description="Megatron names or wildcards of the modules that get an adapter; empty means every linear one.",
    )
    exclude_modules: list[str] = Field(
        default_factory=list, description="Modules that get none; only when `target_modules` is empty."
    )
    dim: int = Field(8, ge=1, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="The adapter's output is scaled by alpha / dim.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Only 0: merged rollout weights cannot reproduce dropout.")
    dropout_position: Literal["pre", "post"] = Field("post", description="Where dropout would apply.")
    lora_A_init_method: InitMethod = Field("xavier", description="First values of A (`xavier` is the normal variant).")
    lora_B_init_method: InitMethod = Field("zero", description="First values of B; `zero` starts from the base model.")
    lora_dtype: None = Field(None, description="Only null: adapters have the precision of the policy.")


class OptimizerConfig(Section):
    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam (with decoupled weight decay) or SGD.")
    lr: float = Field(5.0e-6, gt=0, description="Learning rate. LoRA wants about ten times that of full fine-tuning.")
    min_lr: float = Field(5.0e-7, ge=0, description="Learning rate at the end of the decay.")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay.")
    bf16: bool | None = Field(None, description="Follows `policy.precision`; may be given, but must agree with it.")
    params_dtype: Literal["float32"] = Field("float32", description="Number format of the master weights.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's decay of the first moment.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Adam's decay of the second moment.")
    adam_eps: float = Field(1.0e-8, gt=0, description="Adam's epsilon.")
    sgd_momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    use_distributed_optimizer: bool = Field(True, description="Split optimizer state over the data-parallel ranks.")
    use_precision_aware_optimizer: bool = Field(
        False, description="Transformer Engine's fused Adam, which can keep moments in fewer bits; GPU only."
    )
    clip_grad: float = derived(
        "${policy.max_grad_norm}", ge=0, description="Must equal `policy.max_grad_norm`, which is the one to set."
    )


class SchedulerConfig(Section):
    start_weight_decay: float = derived(
        "${policy.megatron_cfg.optimizer.weight_decay}", ge=0, description="Weight decay at the first step."
    )
    end_weight_decay: float = derived(
        "${policy.megatron_cfg.optimizer.weight_decay}", ge=0, description="Weight decay at the last step."
    )
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Way from the first weight decay to the last."
    )
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = Field(
        "constant", description="Way from `lr` down to `min_lr` after the warm-up; `constant` stays at `lr`."
    )
    lr_decay_iters: int = Field(1000, ge=1, description="Optimizer steps over which the learning rate decays.")
    lr_warmup_iters: int = Field(13, ge=0, description="Optimizer steps over which the learning rate rises to `lr`.")
    lr_warmup_init: float = Field(5.0e-7, ge=0, description="Learning rate at the first step of the warm-up.")


class DistributedDataParallelConfig(Section):
    grad_reduce_in_fp32: bool = Field(False, description="Sum gradients over data-parallel ranks in float32.")
    overlap_grad_reduce: bool = Field(True, description="Sum gradients while the backward pass still runs.")
    overlap_param_gather: bool = Field(True, description="Gather updated weights while the next forward pass runs.")


class MegatronConfig(Section):
    enabled: Literal[True] = Field(True, description="Only true: Megatron is the one trainer here.")
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    tensor_model_parallel_size: int = Field(1, ge=1, description="Ranks that split each layer (TP).")
    pipeline_model_parallel_size: int = Field(1, ge=1, description="Stages that the layers are divided into (PP).")
    context_parallel_size: int = Field(1, ge=1, description="Ranks that split each sequence (CP).")
    expert_model_parallel_size: int = Field(
        1, ge=1, description="Ranks that experts of a mixture are spread over (EP)."
    )
    num_layers_in_first_pipeline_stage: int | None = Field(
        None, ge=1, description="Layers of the first stage; null is even."
    )
    num_layers_in_last_pipeline_stage: int | None = Field(
        None, ge=1, description="Layers of the last stage; null is even."
    )
    pipeline_dtype: Literal["bfloat16", "float16", "float32"] = derived(
        "${policy.precision}", description="Number format of what travels between stages."
    )
    sequence_parallel: bool = Field(
        False,
        description="Split norms and dropout over the tensor-parallel ranks along the sequence; needs TP above 1.",
    )
    moe_router_dtype: Literal["fp32", "fp64"] | None = Field(
        "fp64", description="Number format of the router's scores."
    )
    apply_rope_fusion: bool | None = Field(
        None, description="Fused rotary embedding, five times faster on packed rows; null is on where there is a GPU."
    )
    bias_activation_fusion: bool = Field(
        False, description="Fused bias and activation; rounds differently from the engine's."
    )
    defer_fp32_logits: bool = Field(
        True,
        description="Convert logits to float32 by chunks of `policy.logprob_chunk_size`; false takes them all at once.",
    )
    peft: PeftConfig = group(PeftConfig, "LoRA adapters.")
    optimizer: OptimizerConfig = group(OptimizerConfig, "Optimizer.")
    scheduler: SchedulerConfig = group(SchedulerConfig, "Learning-rate and decay schedule.")
    distributed_data_parallel_config: DistributedDataParallelConfig = group(
        DistributedDataParallelConfig, "Gradient reduction over the data-parallel ranks."
    )
    env_vars: dict[str, str] | None = Field(None, description="Environment variables of the policy's workers.")
