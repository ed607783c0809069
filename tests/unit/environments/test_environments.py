"""Environments by name and by entry point, and how they score."""

from pathlib import Path

import pytest

from nemo_rl.data.datasets import load_records
from nemo_rl.data.settings import DatasetSettings
from nemo_rl.environments.interfaces import EnvironmentInput, GradeStatus
from nemo_rl.environments.registry import EnvironmentConfigError, make_environment, register_environment
from nemo_rl.environments.settings import EnvironmentSettings
from nemo_rl.environments.single_turn import ExactMatchEnvironment

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_environment.py"
GRADERS = Path(__file__).parent / "graders.py"


def said(response, **metadata):
    return EnvironmentInput("s", [{"role": "assistant", "content": response}], metadata)


def rewards(name, settings, batch):
    environment = make_environment(name, settings)
    outputs = environment.step(batch)
    environment.close()
    return [output.reward for output in outputs]


def test_math_grades_a_batch():
    batch = [said(r"\boxed{4}", ground_truth="4"), said("#### 5", ground_truth="4")]
    assert rewards("math", EnvironmentSettings(), batch) == [1.0, 0.0]


def test_power_tower_does_not_stop_the_run():
    environment = make_environment("math", EnvironmentSettings(num_workers=1, timeout_s=1.5))
    tower, plain = environment.step([said(r"\boxed{9^{9^{9^{9}}}}", ground_truth="1"), said("2", ground_truth="2")])
    environment.close()
    assert tower.status is GradeStatus.TIMEOUT or tower.reward == 0.0
    assert plain.reward == 1.0


@pytest.mark.parametrize("form", ["{}", r"so \boxed{{{}}}", "I say <answer>{}</answer> for sure"])
def test_reasoning_gym_scores_by_its_own_task(form):
    settings = DatasetSettings("reasoning_gym:spell_backward", size=2, task_params={"min_word_len": 3})
    records = load_records(settings)
    batch = [said(form.format(record.metadata["ground_truth"]), **record.metadata) for record in records]
    assert rewards("reasoning_gym", EnvironmentSettings(num_workers=1), batch) == [1.0, 1.0]


def test_reasoning_gym_wrong_answer_scores_as_the_task_says():
    (record,) = load_records(DatasetSettings("reasoning_gym:chain_sum", size=1))
    from reasoning_gym import get_score_answer_fn

    expected = get_score_answer_fn("chain_sum")("77777777", record.metadata["entry"])
    settings = EnvironmentSettings(num_workers=1)
    assert rewards("reasoning_gym", settings, [said("77777777", **record.metadata)]) == [expected]
    assert expected < 1.0


def test_exact_match_is_strict():
    batch = [said(text, ground_truth="8") for text in ("8", " 8\n", "88", "")]
    assert rewards("exact_match", EnvironmentSettings(), batch) == [1.0, 1.0, 0.0, 0.0]


def test_guess_number_plays_several_turns():
    environment = make_environment("guess_number", EnvironmentSettings())
    metadata = {"target": 7, "turns_left": 3}
    hints = []
    for guess in ("3", "I guess 9", "7"):
        (output,) = environment.step([said(guess, **metadata)])
        metadata = output.metadata
        hints += [message["content"] for message in output.observations]
    assert hints == ["Higher.", "Lower."]
    assert output.terminated and output.reward == 1.0


@pytest.mark.parametrize(
    ("target", "guess", "reward"),
    [
        (7, "-7", 0.0),
        (7, "−7", 0.0),
        (-7, "-7", 1.0),
        (-7, "−7", 1.0),
        (-7, "-007", 1.0),
        (-7, "7", 0.0),
        (7, "007", 1.0),
        (7, "of 1-7 I take the 7", 1.0),
        (7, "one of 1-7", 1.0),
        (7, "70", 0.0),
        (0, "000", 1.0),
        (0, "-0", 1.0),
    ],
)
def test_guess_number_reads_signs_and_leading_zeros(target, guess, reward):
    environment = make_environment("guess_number", EnvironmentSettings())
    (output,) = environment.step([said(guess, target=target, turns_left=1)])
    assert output.reward == reward


def test_guess_number_ends_without_reward_when_turns_run_out():
    environment = make_environment("guess_number", EnvironmentSettings())
    (first,) = environment.step([said("no number", target=7, turns_left=2)])
    (last,) = environment.step([said("9" * 5000, **first.metadata)])
    assert not first.terminated
    assert last.terminated and last.reward == 0.0


def test_reward_function_in_a_file_of_the_users_own():
    settings = EnvironmentSettings(num_workers=1, entry_point=f"{EXAMPLE}:short_and_right")
    batch = [
        said("It is 42.", ground_truth="42"),
        said("42" + " well" * 40, ground_truth="42"),
        said("", ground_truth="4"),
    ]
    assert rewards("my_task", settings, batch) == [1.0, 0.5, 0.0]


def test_class_as_entry_point_is_an_environment():
    settings = EnvironmentSettings(entry_point="nemo_rl.environments.single_turn:ExactMatchEnvironment")
    assert isinstance(make_environment("mine", settings), ExactMatchEnvironment)


def test_registered_name_is_found_and_taken_once():
    register_environment("registered_by_test", ExactMatchEnvironment)
    assert isinstance(make_environment("registered_by_test", EnvironmentSettings()), ExactMatchEnvironment)
    with pytest.raises(EnvironmentConfigError, match="already registered"):
        register_environment("registered_by_test", ExactMatchEnvironment)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("maths", EnvironmentSettings(), "did you mean 'math'"),
        ("math", EnvironmentSettings(verifier="mathh"), "unknown verifier 'mathh'"),
        ("mine", EnvironmentSettings(entry_point="no_colon"), "must read 'module:name'"),
        ("mine", EnvironmentSettings(entry_point="no_such_module_here:f"), "there is no module"),
        ("mine", EnvironmentSettings(entry_point="no/such/file.py:f"), "does not exist"),
        ("mine", EnvironmentSettings(entry_point=f"{GRADERS}:nothing"), "defines no 'nothing'"),
        ("mine", EnvironmentSettings(entry_point=f"{GRADERS}:NOT_A_FUNCTION"), "neither a function nor a class"),
    ],
)
def test_configuration_errors_are_one_sentence(name, settings, message):
    with pytest.raises(EnvironmentConfigError, match=message) as caught:
        make_environment(name, settings)
    assert "\n" not in str(caught.value)


def test_docs_show_the_example_as_it_is():
    assert EXAMPLE.read_text() in (EXAMPLE.parents[1] / "docs" / "environments.md").read_text()
