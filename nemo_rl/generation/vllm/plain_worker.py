"""A rollout engine that loads its weights from a model folder by itself: for evaluation, where nothing is trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_rl.config.schema import EngineConfig
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest
from nemo_rl.generation.vllm.state import EngineState
from nemo_rl.generation.vllm.worker import VllmWorker
from nemo_rl.utils.jsonio import read_json
from nemo_rl.utils.logging_setup import setup_worker_logging

_WEIGHT_TRANSFER = ("weight_transfer_config", "worker_extension_cls")


class PlainVllmWorker(VllmWorker):
    """Answers batches with the weights of `model_path`; with `adapter`, a PEFT folder, vLLM adds its LoRA itself."""

    def __init__(
        self,
        config: EngineConfig,
        model_path: str,
        tokenizer_path: str,
        replica: int,
        *,
        cpu: bool,
        adapter: str | None = None,
    ) -> None:
        setup_worker_logging(f"engine {replica}")
        from vllm import LLM

        from nemo_rl.generation.vllm.engine_args import engine_arguments

        self.state = EngineState(replica)
        self.state.version = 0
        self.can_sleep = False
        arguments = engine_arguments(
            config.policy, model_path, tokenizer_path, cpu=cpu, seed=config.seed + replica, sleep_mode=False
        )
        arguments = {key: value for key, value in arguments.items() if key not in _WEIGHT_TRANSFER}
        arguments["load_format"] = "auto"
        self.lora: Any = None
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": served_rank(Path(adapter))}
            self.lora = LoRARequest("adapter", 1, adapter)
        self.engine = LLM(**arguments)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Sample every request to its end."""
        from nemo_rl.generation.vllm.engine_args import sampling_params

        outputs = self.engine.generate(
            [{"prompt_token_ids": list(request.token_ids)} for request in requests],
            [sampling_params(request, stream=False) for request in requests],
            use_tqdm=False,
            lora_request=self.lora,
        )
        return [self._output(request, output, 0) for request, output in zip(requests, outputs, strict=True)]


def served_rank(adapter: Path) -> int:
    """The smallest rank that vLLM has kernels for and that holds the adapter's: a power of two from 8 on."""
    rank = int(read_json(adapter / "adapter_config.json")["r"])
    served = 8
    while served < rank:
        served *= 2
    return served
