"""Tokens go in, tokens come out: requests to and outputs from the rollout engine."""

from dataclasses import dataclass
from enum import Enum


class EngineLost(RuntimeError):
    """The engine's own process ended while its worker lives on; the worker is of no use any more."""


class FinishReason(Enum):
    """Why a generation ended. LENGTH means truncated; a stop string or stop token is STOP."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class SamplingSettings:
    """What the distribution is and where it stops; equal for all requests of a phase (training, validation)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """One sample to draw. `seed` None leaves the draw to the engine's own generator."""

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int | None
    sampling: SamplingSettings


@dataclass(frozen=True)
class VersionSpan:
    """Tokens [start, end) of a generation were sampled with weights `version`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True)
class GenerationOutput:
    """The sampled tokens of one request, each with its log-probability under the distribution it was drawn from."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    replica: int = 0
