"""What a person can set right is one sentence and exit code 2, before a worker starts, and nothing is left behind."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_rl.algorithms import evaluation, main, setup, sft_setup
from nemo_rl.algorithms.checkpoints import compatibility
from nemo_rl.config import load_config
from nemo_rl.config.cli import entry_point
from nemo_rl.config.schema import EvalMasterConfig, MasterConfig, SFTMasterConfig
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.tiny_model import make_tiny_model

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
TEMPLATE = "policy.tokenizer.chat_template"
PARAMS = "data.train.task_params"
CPU = ("cluster.accelerator=cpu", "cluster.worker_environment=driver")
SEAMS: dict[str, tuple[str, type[Any], Any, tuple[str, ...]]] = {
    "grpo": ("grpo_tiny_cpu.yaml", MasterConfig, main.run_grpo, ("checkpointing.checkpoint_dir=checkpoints",)),
    "sft": ("sft_tiny_cpu.yaml", SFTMasterConfig, main.run_sft, ("checkpointing.checkpoint_dir=checkpoints",)),
    "eval": (
        "eval.yaml", EvalMasterConfig, main.run_eval,
        ("data.dataset_name=tiny_max", "data.prompt_file=null", "data.size=4", "policy.max_total_sequence_length=64"),
    ),
}  # fmt: skip


class Reached(Exception):
    """Ray would start now."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, num_hidden_layers=1)
    return folder


@pytest.fixture
def start(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an entry point in an empty folder up to the point where Ray would start."""

    @contextmanager
    def ray_cluster(*args: Any, **kwargs: Any) -> Iterator[None]:
        raise Reached
        yield

    for module in (setup, sft_setup, evaluation):
        monkeypatch.setattr(module, "ray_cluster", ray_cluster)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path.with_name("wandb")))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(kind: str, *overrides: str) -> int:
        file, root, runner, own = SEAMS[kind]
        arguments = [*CPU, f"policy.model_name={model}", *(() if kind == "eval" else ("logger.log_dir=logs",)), *own]
        return entry_point([*arguments, *overrides], CONFIGS / file, root, lambda config: "", runner)

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CASES: list[tuple[str, str, tuple[str, ...], str]] = [
    ("no GPU", "grpo", ("cluster.accelerator=cuda",), "error: cluster.accelerator=cuda but no NVIDIA GPU"),
    ("nodes without an address", "sft", ("cluster.num_nodes=2",), "cluster.num_nodes=2 needs a running Ray cluster"),
    ("log_dir is a file", "sft", ("logger.log_dir=file",), "logger.log_dir=file cannot be a folder: .*file is a file"),
    ("log_dir below a file", "grpo", ("logger.log_dir=file/x",), "logger.log_dir=file/x cannot be a folder"),
    ("log_dir that the system refuses", "sft", ("logger.log_dir=/proc/x", "checkpointing.enabled=false"),
     "logger.log_dir=/proc/x cannot be (made|written)"),
    ("checkpoint_dir is a file", "grpo", ("checkpointing.checkpoint_dir=file", "checkpointing.enabled=true"),
     "checkpointing.checkpoint_dir=file cannot be a folder"),
    ("template that is no Jinja", "grpo", (f'{TEMPLATE}="{{% if %}}"',), "not valid Jinja, line 1: .*correct policy"),
    ("template that refuses", "sft", (f"""{TEMPLATE}='{{{{ raise_exception("no") }}}}'""",),
     "the chat template refuses a conversation of user: no"),
    ("template without places", "grpo", (f"{TEMPLATE}=hello",), "chat template file hello does not exist"),
    ("impossible override of the model", "grpo", ("+policy.hf_config_overrides.num_hidden_layers=x",),
     "policy.hf_config_overrides=.*'num_hidden_layers': 'x'.* expected int, got str"),
    ("text for a parameter", "grpo",
     ("data.train.dataset_name='reasoning_gym:chain_sum'", "data.train.prompt_file=null", f"+{PARAMS}.min_terms=two"),
     r"'chain_sum' refuses data.train.task_params \(min_terms='two'\)"),
    ("text for a number", "grpo",
     ("data.train.dataset_name=guess_number", f"+{PARAMS}.low=one"),
     "data.train.task_params.low must be a whole number, found 'one'"),
    ("prompt file of another encoding", "grpo", ("data.train.prompt_file=latin1",), "prompt file latin1 is not UTF-8"),
    ("markup in a name", "grpo", ("policy.model_name='./m[/b]nope'",), r"model folder m\[/b\]nope does not exist"),
    ("answer without a question", "sft",
     ("data.train.dataset_name=ResponseDataset", "data.train.data_path='a[b].jsonl'"),
     r"data.train \(a\[b\].jsonl\), row 0: column 'messages' begins with an assistant message"),
    ("no such reward file", "grpo", ("+env.t.entry_point='nofile.py:f'", "data.train.env_name=t"),
     "env.t: .*nofile.py.* does not exist"),
    ("no such reward module", "grpo", ("+env.t.entry_point='nomod:f'", "data.train.env_name=t"), "there is no module"),
    ("no such reward function", "eval", ("+env.t.entry_point='reward.py:nope'", "data.env_name=t"), "no 'nope'"),
    ("reward file with a typo", "grpo", ("+env.t.entry_point='typo.py:f'", "data.train.env_name=t"),
     "env.t.entry_point=typo.py:f cannot be imported: .*typo.py, line 1"),
    ("reward file that imports what is not there", "eval", ("+env.t.entry_point='needs.py:f'", "data.env_name=t"),
     "env.t.entry_point=needs.py:f cannot be imported: No module named 'nomod'"),
    ("rollouts that are not there", "grpo", ("debug.train_from_rollouts=nope",), "train_from_rollouts=nope holds"),
    ("adapter that is not there", "eval", ("eval.adapter_path=nope",), "eval.adapter_path: .*nope has no adapter_conf"),
    ("native adapter", "eval", ("eval.adapter_path=nope", "eval.adapter=native"), "eval.adapter_path: .*nope has no"),
    ("checkpoint that is not there", "eval", ("eval.checkpoint=nope",), "eval.checkpoint: nope is not a directory"),
    ("results that are there", "eval", ("eval.save_path=results",),
     "eval.save_path=results holds metrics.json already; choose another eval.save_path or remove it"),
    ("save_path is a file", "eval", ("eval.save_path=file",), "eval.save_path=file cannot be a folder"),
    ("too few prompts", "grpo", ("data.train.size=3", "data.train.split_validation_size=1"), "fewer than the"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "overrides", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_error_of_the_user_is_one_sentence_and_leaves_nothing(
    kind: str, overrides: tuple[str, ...], message: str, start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "latin1").write_bytes(b"\xe9t\xe9 {}")
    (tmp_path / "reward.py").write_text("def right(response, metadata):\n    return 1.0\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    (tmp_path / "needs.py").write_text("import nomod\n")
    (tmp_path / "a[b].jsonl").write_text(json.dumps({"messages": [{"role": "assistant", "content": "hi"}]}) + "\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.json").write_text("{}")
    before = files(tmp_path)
    assert start(kind, *overrides) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(message, last), last
    after = {name: content for name, content in files(tmp_path).items() if "__pycache__" not in name}
    assert after == before


@pytest.mark.parametrize("kind", list(SEAMS))
def test_what_is_right_gets_as_far_as_ray(kind: str, start: Any) -> None:
    with pytest.raises(Reached):
        start(kind)


def test_tracker_without_a_key_leaves_no_run_directory(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def refuse(**settings: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    assert start("sft", "logger.wandb_enabled=true") == 2
    assert "No API key configured" in (line := capsys.readouterr().err.splitlines()[-1]) and "WANDB_API_KEY" in line
    assert not any((tmp_path / "logs").iterdir())


CHANGES = [
    ("policy.megatron_cfg.peft.dim=2", "does not fit this run: .*peft.dim was .* and is now 2"),
    ("policy.megatron_cfg.optimizer.lr=0.5", "does not fit this run: .*optimizer.lr was .* and is now 0.5"),
    ("policy.precision=bfloat16", "does not fit this run: policy.precision was 'float32' and is now 'bfloat16'"),
    ("data.shuffle=true", "the checkpoint's dataloader had seed=7, this run has seed="),
]


def save(folder: Path, kind: str, model: Path, *, from_run: bool = True) -> None:
    """A checkpoint of step 3 with a seed of its own, as a run or a converter writes it."""
    file, root, _, _ = SEAMS[kind]
    config = load_config(CONFIGS / file, [*CPU, f"policy.model_name={model}"], root)
    loader = {"cursor": 0, "epoch": 0, "seed": 7, "shuffle": True, "num_prompts": 960}
    position = {"loader": loader} if kind == "grpo" else loader
    info = {"metrics": {}, "compatibility": compatibility(config), "data": position if from_run else None}
    manager = CheckpointManager(folder, None, True, None)
    (manager.begin(3) / "policy").mkdir()
    manager.finalize(3, info, config.model_dump(mode="json"))


@pytest.mark.parametrize(("change", "message"), CHANGES)
@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_resume_with_other_settings_is_refused(
    kind: str, change: str, message: str, start: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "checkpoints", kind, model)
    assert start(kind, "checkpointing.enabled=true", change) == 2
    assert re.search(f"step_3: .*{message}", capsys.readouterr().err)
    assert not (tmp_path / "logs").exists()


def test_resume_from_a_converted_adapter_is_refused(
    start: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "checkpoints", "grpo", model, from_run=False)
    assert start("grpo", "checkpointing.enabled=true") == 2
    assert re.search("step_3 was converted from an adapter .* checkpointing.adapter_path", capsys.readouterr().err)
