"""One request on its way through the engine: its tokens so far, and which weights made each of them."""

from itertools import count, groupby
from typing import Any

from nemo_rl.generation.interfaces import FinishReason, GenerationOutput, GenerationRequest, VersionSpan
from nemo_rl.generation.vllm.state import finish_reason

_numbers = count()


class Sampling:
    """Collects the streamed pieces of one request."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.engine_id = ""
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.starts_over = False

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def begin(self) -> None:
        """A new attempt, under a name that the engine has not seen."""
        self.engine_id = f"{self.request.request_id}#{next(_numbers)}"
        self.starts_over = False

    def start_over_if_untouched(self) -> bool:
        """Mark for a new attempt if there is no token yet; the caller then aborts the present one."""
        self.starts_over = bool(self.engine_id) and not self.tokens and not self.finished
        return self.starts_over

    def append(self, piece: Any, version: int | None) -> None:
        """Take a streamed piece, or all there is at the end: tokens that were all sampled with `version`."""
        if self.starts_over:
            return  # the end of an aborted attempt
        completion = piece.outputs[0]
        tokens = list(completion.token_ids)
        if tokens:
            if version is None:
                raise ValueError(f"{self.request.request_id}: tokens arrived while the engine had no complete weights")
            # A last piece without tokens repeats all log-probabilities, and vLLM may have merged it into this one.
            logprobs = list(completion.logprobs.logprobs)[: len(tokens)]
            if len(logprobs) != len(tokens):
                raise ValueError(
                    f"{self.request.request_id}: {len(tokens)} tokens came with {len(logprobs)} log-probabilities"
                )
            self.tokens += tokens
            self.logprobs += logprobs
            self.versions += [version] * len(tokens)
        if completion.finish_reason is not None:
            self.finish_reason = finish_reason(self.request.request_id, completion.finish_reason)

    def output(self, replica: int) -> GenerationOutput:
        assert self.finish_reason is not None
        return GenerationOutput(
            request_id=self.request.request_id,
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            version_spans=version_spans(self.versions),
            replica=replica,
        )


def version_spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    """[3, 3, 4] -> [0, 2) by 3, [2, 3) by 4."""
    spans, start = [], 0
    for version, run in groupby(versions):
        end = start + len(list(run))
        spans.append(VersionSpan(start, end, version))
        start = end
    return tuple(spans)
