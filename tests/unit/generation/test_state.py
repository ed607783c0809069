"""An engine says why it does not generate."""

import pytest

from nemo_rl.generation.vllm.state import EngineState
from nemo_rl.weight_sync.interfaces import WeightSyncError


def test_no_weights_yet() -> None:
    with pytest.raises(WeightSyncError, match="engine 2 has no complete weights: it generates again"):
        EngineState(2).require_weights()


def test_a_sync_that_did_not_finish_is_named() -> None:
    state = EngineState(0)
    state.complete(1)
    state.begin(2)
    with pytest.raises(WeightSyncError, match="the sync of version 2 did not finish"):
        state.require_weights()


def test_a_sync_that_failed_is_named_with_its_reason_until_one_completes() -> None:
    state = EngineState(0)
    state.begin(2)
    state.fail(2, "layer 3 arrived damaged")
    with pytest.raises(WeightSyncError, match="version 2 failed: layer 3 arrived damaged"):
        state.require_weights()
    state.begin(3)
    state.complete(3)
    assert state.require_weights() == 3
