"""The parts of a GRPO step that no engine is needed for."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_rl.algorithms.bookkeeping import StepResult, performance
from nemo_rl.algorithms.checkpoints import compatibility, update_best
from nemo_rl.algorithms.grpo import shaped_rewards
from nemo_rl.algorithms.run_parts import active_parameters
from nemo_rl.config.layout import ParallelLayout
from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import MasterConfig
from nemo_rl.utils.checkpoint_files import CheckpointError, check_compatible

CONFIG = Path(__file__).parents[3] / "examples" / "configs" / "grpo_tiny_cpu.yaml"
SCHEDULER = "policy.megatron_cfg.scheduler"


def config(*overrides: str) -> MasterConfig:
    loaded: MasterConfig = load_config(CONFIG, list(overrides))
    return loaded


def test_kl_in_the_reward_is_paid_by_truncated_rollouts_too() -> None:
    """k1 with d = -0.5 at two of three tokens: 0.1 x (0.5 + 0.5) less, whether or not the rollout enters the loss."""
    settings = config(
        "loss_fn.use_kl_in_reward=true", "loss_fn.reference_policy_kl_penalty=0.1",
        "loss_fn.reference_policy_kl_type=k1", "grpo.overlong_filtering=true",
    )  # fmt: skip
    loss_mask = torch.tensor([[False, True, True]] * 2)
    batch: Any = SimpleNamespace(
        previous_logprobs_BT=torch.full((2, 3), -1.0),
        reference_logprobs_BT=torch.full((2, 3), -1.5),
        loss_mask_BT=loss_mask,
        mask_BT=loss_mask & torch.tensor([[True], [False]]),
    )
    rollouts: Any = [SimpleNamespace(reward=1.0), SimpleNamespace(reward=1.0)]
    assert shaped_rewards(rollouts, batch, settings).tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("change", [
    f"{SCHEDULER}.lr_decay_style=linear", f"{SCHEDULER}.lr_decay_iters=20", f"{SCHEDULER}.lr_warmup_iters=3",
    "policy.megatron_cfg.optimizer.weight_decay=0.1", "policy.megatron_cfg.optimizer.adam_beta2=0.95",
    "grpo.async_grpo.enabled=true",
])  # fmt: skip
def test_a_resume_refuses_what_the_checkpoint_would_override(change: str) -> None:
    asynchronous = change.startswith("grpo.async_grpo")
    file = CONFIG.with_name("grpo_tiny_cpu_async.yaml") if asynchronous else CONFIG
    other: MasterConfig = load_config(file, [] if asynchronous else [change])
    saved = {"step": 3, "compatibility": compatibility(config())}
    check_compatible(saved, compatibility(config("grpo.max_num_steps=99")))
    with pytest.raises(CheckpointError, match=change.partition("=")[0]):
        check_compatible(saved, compatibility(other))


@pytest.mark.parametrize(("higher", "values", "best"), [
    (True, [math.nan, 0.5, 0.6, 0.1], 0.6), (False, [0.5, math.nan, 0.9], 0.5),
])  # fmt: skip
def test_what_is_no_number_is_never_the_best(higher: bool, values: list[float], best: float) -> None:
    run: Any = SimpleNamespace(
        config=config(f"checkpointing.higher_is_better={higher}".lower()), state=SimpleNamespace(best_metric=None)
    )
    for value in values:
        update_best(run, {"validation/accuracy": value})
    assert run.state.best_metric == best


@pytest.mark.parametrize(("tp", "ep", "experts_here"), [(1, 1, 128), (1, 8, 16), (2, 8, 16)])
def test_parameters_that_a_token_meets_do_not_depend_on_the_layout(tp: int, ep: int, experts_here: int) -> None:
    """Like Qwen3-30B-A3B: 1.5 B outside of experts, 128 experts of 0.2265 B, 8 of which a token is sent to."""
    layout = ParallelLayout(tp=tp, pp=1, cp=1, dp=1, ep=ep, world=tp * ep)
    experts = experts_here * 226_500_000
    rank = {"total": 1_500_000_000 // tp + experts, "total_experts": experts}
    model = SimpleNamespace(num_experts=128, num_experts_per_tok=8)
    assert active_parameters(rank, "total", layout, model) == 1_500_000_000 + 8 * 226_500_000


@pytest.mark.parametrize(("asynchronous", "rate"), [(False, 512_000.0), (True, 1_280.0)])
def test_an_asynchronous_run_generates_while_the_policy_works(asynchronous: bool, rate: float) -> None:
    rollout = SimpleNamespace(token_ids=range(102_400), generated_length=102_400)
    run: Any = SimpleNamespace(
        config=SimpleNamespace(grpo=SimpleNamespace(async_grpo=SimpleNamespace(enabled=asynchronous))),
        devices={"all": 8, "generation": 4, "policy": 4},
    )
    result = StepResult(groups=[SimpleNamespace(rollouts=[rollout])])  # type: ignore[list-item]
    seconds = {"total_step_time": 21.0, "policy_and_reference_logprobs": 5.0, "policy_training": 14.95}
    seconds |= {"exposed_generation" if asynchronous else "generation": 0.05}
    assert performance(run, result, seconds)["performance/generation_tokens_per_sec_per_gpu"] == pytest.approx(rate)
