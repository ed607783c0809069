"""One rollout engine: a Ray actor around vLLM's in-process engine, answering whole batches."""

import logging
from collections.abc import Sequence
from typing import Any

from nemo_rl.config.schema import EngineConfig
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest, VersionSpan
from nemo_rl.generation.vllm.place import place_of_this_actor
from nemo_rl.generation.vllm.state import EngineState, finish_reason
from nemo_rl.utils.logging_setup import setup_worker_logging
from nemo_rl.weight_sync.interfaces import Bucket

logger = logging.getLogger(__name__)


class VllmWorker:
    """Generation replica over vllm.LLM. One call generates a batch; weight updates happen between calls."""

    def __init__(self, config: EngineConfig, model_path: str, tokenizer_path: str, replica: int, *, cpu: bool) -> None:
        setup_worker_logging(f"engine {replica}")
        from vllm import LLM

        from nemo_rl.generation.vllm.engine_args import engine_arguments

        policy = config.policy
        self.state = EngineState(replica)
        self.checksums = config.weight_sync.checksums
        self.can_sleep = policy.generation.sleeps and not cpu
        self.engine = LLM(
            **engine_arguments(
                policy,
                model_path,
                tokenizer_path,
                cpu=cpu,
                seed=config.seed + replica,
                sleep_mode=self.can_sleep,
            )
        )

    def ready(self) -> dict[str, Any]:
        cache = self.engine.llm_engine.vllm_config.cache_config
        return {
            "replica": self.state.replica,
            "kv_cache_blocks": cache.num_gpu_blocks,
            "block_size": cache.block_size,
            **place_of_this_actor(),
        }

    def ping(self) -> None:
        """Answers when nothing else is under way; a dead process answers at once, with its death."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Sample every request to its end. Raises WeightSyncError while no complete weights are loaded."""
        from nemo_rl.generation.vllm.engine_args import sampling_params

        version = self.state.require_weights()
        outputs = self.engine.generate(
            [{"prompt_token_ids": list(request.token_ids)} for request in requests],
            [sampling_params(request, stream=False) for request in requests],
            use_tqdm=False,
        )
        return [self._output(request, output, version) for request, output in zip(requests, outputs, strict=True)]

    def _output(self, request: GenerationRequest, output: Any, version: int) -> GenerationOutput:
        completion = output.outputs[0]
        tokens = tuple(completion.token_ids)
        logprobs = tuple(completion.logprobs.logprobs)
        if len(logprobs) != len(tokens):
            raise ValueError(f"{request.request_id}: {len(tokens)} tokens came with {len(logprobs)} log-probabilities")
        return GenerationOutput(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=finish_reason(request.request_id, completion.finish_reason),
            version_spans=(VersionSpan(0, len(tokens), version),),
            replica=self.state.replica,
        )

    def init_receiver(self, factory: str, settings: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self.engine.init_weight_transfer_engine(
            WeightTransferInitRequest(init_info={"factory": factory, "settings": settings})
        )

    def begin_update(self, version: int) -> None:
        """From here to `finish_update` the engine refuses to generate."""
        self.state.begin(version)
        self.engine.collective_rpc("abandon_update")
        self.engine.start_weight_update()

    def load_bucket(self, bucket: Bucket, verify_only: bool = False) -> int:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        from nemo_rl.generation.vllm.receiver import update_info

        info = update_info(bucket, self.checksums, verify_only)
        self.engine.update_weights(WeightTransferUpdateRequest(update_info=info))
        return len(bucket.entries)

    def finish_update(self, version: int, *, recompute_cache: bool = False) -> None:
        """Weights are complete: drop every cached prefix of the old ones, then serve. Nothing runs meanwhile here."""
        self.engine.finish_weight_update()
        self.engine.reset_prefix_cache()
        self.state.complete(version)

    def fail_update(self, version: int, reason: str) -> None:
        """The sync broke off: refuse to generate until one completes."""
        self.state.fail(version, reason)

    def sleep(self) -> None:
        """Give device memory back. The weights need not survive: a sync precedes every use after training."""
        if self.can_sleep:
            self.engine.reset_prefix_cache()
            self.engine.sleep(level=2)
            self.state.version = None

    def wake(self, tags: Sequence[str] | None = None) -> None:
        if self.can_sleep:
            self.engine.wake_up(tags=list(tags) if tags else None)

    def weights_version(self) -> int | None:
        return self.state.version

    def memory_gib(self) -> list[dict[str, float]]:
        """Of each of vLLM's workers."""
        report: list[dict[str, float]] = self.engine.collective_rpc("memory_gib")
        return report

    def fill_weights(self, value: float) -> None:
        self.engine.collective_rpc("fill_weights", args=(value,))

    def shutdown(self) -> None:
        self.engine.llm_engine.engine_core.shutdown()
