"""How a run samples: training, validation and evaluation stop at the same tokens."""

from pathlib import Path

import pytest

from nemo_rl.algorithms import evaluation
from nemo_rl.algorithms.settings import rollout_settings
from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import EvalMasterConfig
from nemo_rl.experience.episodes import RolloutSettings

CONFIGS = Path(__file__).parents[3] / "examples/configs"
EOS = 7


def settings_of_all_phases(*overrides: str, eos: int | None = EOS) -> list[RolloutSettings]:
    config = load_config(CONFIGS / "grpo_tiny_cpu.yaml", [*overrides])
    return [
        rollout_settings(config, eos),
        rollout_settings(config, eos, validation=True),
        evaluation.rollout_settings(load_config(CONFIGS / "eval.yaml", [*overrides], EvalMasterConfig), eos),
    ]


@pytest.mark.parametrize(("overrides", "eos", "stops"), [
    ([], EOS, (7,)),
    ([], None, ()),
    (["stop_token_ids=[9,8]"], EOS, (7, 9, 8)),
    (["stop_token_ids=[9,7]"], EOS, (7, 9)),
    (["ignore_eos=true"], EOS, ()),
    (["ignore_eos=true", "stop_token_ids=[9]"], EOS, (9,)),
])  # fmt: skip
def test_the_tokenizers_end_token_ends_a_turn_beside_those_given(
    overrides: list[str], eos: int | None, stops: tuple[int, ...]
) -> None:
    for settings in settings_of_all_phases(*(f"policy.generation.{override}" for override in overrides), eos=eos):
        assert settings.sampling.stop_token_ids == stops


def test_evaluation_samples_as_validation_does() -> None:
    changes = ["val_temperature=0", "val_top_p=0.5", "val_top_k=3", "temperature=2", "stop_strings=['!']"]
    settings = settings_of_all_phases(*(f"policy.generation.{change}" for change in changes))
    training, validation, evaluating = (s.sampling for s in settings)
    assert (training.temperature, training.top_p, training.top_k) == (2, 1, None)
    assert (validation.temperature, validation.top_p, validation.top_k) == (0, 0.5, 3)
    assert evaluating == validation


def test_the_chat_templates_arguments_are_those_of_the_prompts() -> None:
    for settings in settings_of_all_phases("policy.tokenizer.chat_template_kwargs={enable_thinking: false}"):
        assert settings.template_kwargs == {"enable_thinking": False}
