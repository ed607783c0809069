"""Streamed pieces of one request: tokens, log-probabilities, versions, starting over."""

from types import SimpleNamespace
from typing import Any

import pytest

from nemo_rl.generation.interfaces import FinishReason, GenerationRequest, SamplingSettings, VersionSpan
from nemo_rl.generation.vllm.sampling import Sampling, version_spans


def piece(tokens: list[int], logprobs: list[float], finish: str | None = None) -> Any:
    """What vLLM streams, as far as it is read."""
    completion = SimpleNamespace(token_ids=tokens, logprobs=SimpleNamespace(logprobs=logprobs), finish_reason=finish)
    return SimpleNamespace(outputs=[completion])


@pytest.fixture
def sampling() -> Sampling:
    sampling = Sampling(GenerationRequest("g/0/0", (1, 2), 8, 7, SamplingSettings()))
    sampling.begin()
    return sampling


def test_tokens_carry_the_version_that_was_there_when_they_arrived(sampling: Sampling) -> None:
    sampling.append(piece([5, 6], [-1.0, -2.0]), version=3)
    sampling.append(piece([7], [-3.0], finish="length"), version=4)
    output = sampling.output(replica=1)
    assert output.token_ids == (5, 6, 7)
    assert output.logprobs == (-1.0, -2.0, -3.0)
    assert output.version_spans == (VersionSpan(0, 2, 3), VersionSpan(2, 3, 4))
    assert output.finish_reason is FinishReason.LENGTH
    assert output.replica == 1


def test_log_probabilities_repeated_by_a_merged_empty_piece_are_left_out(sampling: Sampling) -> None:
    sampling.append(piece([5, 6], [-1.0, -2.0, -1.0, -2.0], finish="abort"), version=3)
    assert sampling.output(0).logprobs == (-1.0, -2.0)


def test_missing_log_probabilities_are_an_error(sampling: Sampling) -> None:
    with pytest.raises(ValueError, match="2 tokens came with 1 log-prob"):
        sampling.append(piece([5, 6], [-1.0]), version=3)


def test_tokens_without_a_version_are_an_error(sampling: Sampling) -> None:
    with pytest.raises(ValueError, match="no complete weights"):
        sampling.append(piece([5], [-1.0]), version=None)


def test_a_request_without_tokens_starts_over_and_its_abort_does_not_finish_it(sampling: Sampling) -> None:
    first_name = sampling.engine_id
    assert sampling.start_over_if_untouched()
    sampling.append(piece([5], [-1.0], finish="abort"), version=None)
    assert not sampling.finished and sampling.tokens == []
    sampling.begin()
    assert sampling.engine_id != first_name


def test_a_request_with_tokens_goes_on(sampling: Sampling) -> None:
    sampling.append(piece([5], [-1.0]), version=3)
    assert not sampling.start_over_if_untouched()


def test_an_unknown_end_names_the_request(sampling: Sampling) -> None:
    with pytest.raises(RuntimeError, match="g/0/0 with finish reason 'error'"):
        sampling.append(piece([], [], finish="error"), version=3)


@pytest.mark.parametrize(
    ("versions", "spans"),
    [([], ()), ([2], ((0, 1, 2),)), ([3, 3, 4, 6], ((0, 2, 3), (2, 3, 4), (3, 4, 6)))],
)
def test_version_spans(versions: list[int], spans: tuple[tuple[int, int, int], ...]) -> None:
    assert version_spans(versions) == tuple(VersionSpan(*span) for span in spans)
