"""`policy.generation`: the rollout engine and the distribution it samples from."""

from typing import Any, Literal

from pydantic import Field

from nemo_rl.config.schema.section import Section, derived, group


class VllmConfig(Section):
    async_engine: bool = Field(False, description="Feed the engine one request at a time; asynchronous GRPO needs it.")
    precision: Literal["bfloat16", "float16", "float32"] = derived(
        "${policy.precision}", description="Number format of the engine's weights and activations."
    )
    kv_cache_dtype: Literal["auto", "bfloat16"] = Field(
        "auto", description="Number format of the KV cache; `auto` is that of the weights."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="Devices over which one engine splits each layer.")
    pipeline_parallel_size: int = Field(
        1, ge=1, description="Stages of layers of one engine; above 1 needs `async_engine`."
    )
    expert_parallel_size: int = Field(
        1, ge=1, description="Devices that experts are spread over: 1, or equal to `tensor_parallel_size`."
    )
    gpu_memory_utilization: float = Field(
        0.6, gt=0, le=1, description="Part of the device's memory that the engine uses."
    )
    max_model_len: int = derived(
        "${policy.max_total_sequence_length}", ge=1, description="Longest sequence the engine accepts, in tokens."
    )
    enable_sleep_mode: bool = Field(
        True,
        description="Colocated on a GPU: give the engine's memory back while the policy trains. false keeps it, which "
        "other programs on the same GPU may require (vLLM insists that memory in use falls).",
    )
    enforce_eager: bool = Field(False, description="Do not compile or capture graphs: faster start, slower generation.")
    kv_cache_gb_cpu: float = Field(1.0, gt=0, description="GiB of KV cache of each engine on CPU.")
    env_vars: dict[str, str] | None = Field(None, description="Environment variables of the engines' processes.")


class ResourcesConfig(Section):
    gpus_per_node: int | None = Field(None, ge=1, description="Devices of each node that generation takes for itself.")
    num_nodes: int | None = Field(None, ge=1, description="Nodes that generation takes for itself.")


class ColocatedConfig(Section):
    enabled: bool = Field(
        True, description="Policy and engine share the devices in turn; false gives generation its own."
    )
    resources: ResourcesConfig = group(ResourcesConfig, "Generation's own devices when it is not colocated.")


class GenerationConfig(Section):
    backend: Literal["vllm"] = Field("vllm", description="Rollout engine.")
    max_new_tokens: int = derived(
        "${policy.max_total_sequence_length}", ge=1, description="Most tokens sampled in one turn."
    )
    temperature: float = Field(
        1.0, gt=0, description="Sampling temperature; the trainer's log-probabilities use it too."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability.")
    top_k: int | None = Field(None, ge=1, description="Sample from so many most likely tokens; null for all.")
    val_temperature: float | None = Field(
        None, ge=0, description="Temperature in validation (0 is greedy); null is the same as in training."
    )
    val_top_p: float | None = Field(
        None, gt=0, le=1, description="`top_p` in validation; null is the same as in training."
    )
    val_top_k: int | None = Field(None, ge=1, description="`top_k` in validation; null is the same as in training.")
    stop_token_ids: list[int] | None = Field(
        None,
        description="Further tokens that end a turn: the model's own (generation_config.json) and the tokenizer's end "
        "token always do, unless `ignore_eos`. null adds none.",
    )
    stop_strings: list[str] | None = Field(None, description="Texts that end a turn.")
    ignore_eos: bool = Field(False, description="Sample on beyond end tokens, to `max_new_tokens`: for benchmarks.")
    seed_per_sample: bool = Field(
        True,
        description="Derive each sample's seed from `grpo.seed`, so that batching does not change what is sampled.",
    )
    vllm_cfg: VllmConfig = group(VllmConfig, "Settings of vLLM.")
    vllm_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's engine, passed on as they are."
    )
    colocated: ColocatedConfig = group(ColocatedConfig, "Where the engine runs.")

    @property
    def sleeps(self) -> bool:
        """Whether an engine on a GPU gives its memory back while the policy trains."""
        return self.colocated.enabled and self.vllm_cfg.enable_sleep_mode
