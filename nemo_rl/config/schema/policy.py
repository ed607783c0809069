"""`policy`: the model, its batches and its sequences."""

from typing import Any, Literal

from pydantic import Field

from nemo_rl.config.schema.generation import GenerationConfig
from nemo_rl.config.schema.megatron import MegatronConfig
from nemo_rl.config.schema.section import Section, derived, group


class TokenizerConfig(Section):
    name: str = derived("${policy.model_name}", description="Hub id or folder of the tokenizer.")
    chat_template: str | None = Field(
        None, description="Jinja chat template, or a file that holds it; null is the tokenizer's."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Arguments of the chat template.")


class SequencePackingConfig(Section):
    enabled: bool = Field(True, description="Put several sequences into one row instead of padding each.")
    train_mb_tokens: int = derived(
        "${mul:${policy.max_total_sequence_length},${policy.train_micro_batch_size}}",
        ge=1,
        description="Tokens of one packed row when training.",
    )
    logprob_mb_tokens: int = derived(
        "${mul:${policy.max_total_sequence_length},${policy.logprob_batch_size}}",
        ge=1,
        description="Tokens of one packed row when computing log-probabilities.",
    )
    algorithm: Literal["modified_first_fit_decreasing", "first_fit_decreasing", "concatenative"] = Field(
        "modified_first_fit_decreasing", description="How sequences are assigned to rows."
    )
    sequence_length_round: int = Field(64, ge=1, description="Row lengths are rounded up to a multiple of this.")


class TrainedPolicyConfig(Section):
    """What training alone needs; SFT has this much."""

    model_name: str = Field(
        "Qwen/Qwen2.5-1.5B",
        min_length=1,
        description="Hub id or folder of the model; `tiny-digits-qwen3` is made on the spot.",
    )
    trust_remote_code: bool = Field(False, description="Let the model's repository run its own Python code.")
    hf_config_overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="Entries of the model's config to replace, in trainer and engine; a mapping (`rope_parameters`) "
        "replaces the model's own as a whole.",
    )
    tokenizer: TokenizerConfig = group(TokenizerConfig, "Tokenizer and chat template.")
    precision: Literal["bfloat16", "float16", "float32"] = Field(
        "bfloat16",
        description="Number format of weights and activations; master weights are float32 in any case. `float16` "
        "rounds 8 times finer than `bfloat16`, so that engine and trainer differ less; its range is small.",
    )
    train_global_batch_size: int = Field(
        512, ge=1, description="Rollouts that one optimizer step sees, over all ranks."
    )
    train_micro_batch_size: int = Field(4, ge=1, description="Sequences of one forward and backward pass of one rank.")
    logprob_batch_size: int = derived(
        "${policy.train_micro_batch_size}", ge=1, description="Sequences of one log-probability pass of one rank."
    )
    max_total_sequence_length: int = Field(512, ge=2, description="Longest prompt and response together, in tokens.")
    logprob_chunk_size: int | None = Field(
        None, ge=1, description="Positions whose logits are held at once; null for all. Needs `defer_fp32_logits`."
    )
    make_sequence_length_divisible_by: int = derived(
        "${mul:2,${policy.megatron_cfg.tensor_model_parallel_size},${policy.megatron_cfg.context_parallel_size}}",
        ge=1,
        description="Sequences are padded to a multiple of this, as tensor and context parallelism need it.",
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are scaled down to this norm; 0 for no limit.")
    sequence_packing: SequencePackingConfig = group(SequencePackingConfig, "Several sequences in one row.")
    megatron_cfg: MegatronConfig = group(MegatronConfig, "The trainer.")


class PolicyConfig(TrainedPolicyConfig):
    """A policy that also generates."""

    generation_batch_size: int = Field(256, ge=1, description="Most sequences that one engine generates at once.")
    generation: GenerationConfig = group(GenerationConfig, "The rollout engine.")
