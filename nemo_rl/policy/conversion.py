"""From a checkpoint of a run to what others can open, and back; each can check itself by log-probabilities."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nemo_rl.algorithms.checkpoints import compatibility
from nemo_rl.algorithms.run import RunState
from nemo_rl.errors import UserError
from nemo_rl.policy.adapter_folder import check_adapter_folder
from nemo_rl.policy.megatron.worker import MegatronPolicyWorker
from nemo_rl.policy.single import (
    TrainingConfig,
    config_of_checkpoint,
    hugging_face_logprobs,
    probe,
    single_rank,
)
from nemo_rl.utils.checkpoint import CheckpointManager

# Live adapters and merged weights round differently; a lost or misplaced adapter moves log-probabilities far more.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}


class ConversionError(RuntimeError):
    """What was written does not compute what was read."""


@dataclass(frozen=True)
class Conversion:
    """What a conversion wrote; the mean and largest |difference| in log-probability, None if not verified."""

    output: Path
    files: list[str]
    mean_difference: float | None = None
    largest_difference: float | None = None


def checkpoint_to_hugging_face(checkpoint: Path, output: Path, model: str, *, check: bool = True) -> Conversion:
    """Write the merged model of `checkpoint` as a Hugging Face folder. `model` is the base that the run trained."""
    _must_be_new(output)
    config = config_of_checkpoint(checkpoint)
    with single_rank(config, model) as worker:
        worker.load_weights(str(checkpoint / "policy"))
        worker.save_merged(str(output))
        return _verified(worker, output, lambda: _hugging_face(output, config)) if check else _plain(output)


def checkpoint_to_peft(checkpoint: Path, output: Path, model: str, *, check: bool = True) -> Conversion:
    """Write the adapters of `checkpoint` as a PEFT folder."""
    _must_be_new(output)
    config = config_of_checkpoint(checkpoint)
    with single_rank(config, model) as worker:
        worker.load_weights(str(checkpoint / "policy"))
        worker.save_adapter(str(output))
        return _verified(worker, output, lambda: _with_peft(model, output, config)) if check else _plain(output)


def peft_to_checkpoint(
    adapter: Path, output: Path, model: str, config: TrainingConfig, *, check: bool = True
) -> Conversion:
    """Write a PEFT folder as step_0 in the checkpoint directory `output`, with a fresh optimizer.

    It can be evaluated and converted. To train from an adapter set checkpointing.adapter_path instead: a run resumes
    only where a run stopped.
    """
    _must_be_new(output)
    peft = config.policy.megatron_cfg.peft
    check_adapter_folder(adapter, peft.dim, peft.alpha)
    manager = CheckpointManager(output, None, True, None)
    with single_rank(config, model, adapter) as worker:
        worker.save(str(manager.begin(0) / "policy"))
        info = {"metrics": {}, "compatibility": compatibility(config), "state": asdict(RunState()), "data": None}
        step = manager.finalize(0, info, config.model_dump(mode="json"))
        if not check:
            return _plain(step)
        with torch.no_grad():  # what is verified is the file
            for parameter in worker.model.trainable().values():
                parameter.zero_()
        worker.load_weights(str(step / "policy"))
        return _verified(worker, step, lambda: _with_peft(model, adapter, config))


def _must_be_new(output: Path) -> None:
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"{output} exists and is not empty: nothing is overwritten; name another folder")


def _dtype(config: TrainingConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, config.policy.precision)
    return dtype


def _hugging_face(folder: Path | str, config: TrainingConfig) -> Any:
    from transformers import AutoModelForCausalLM

    trust = config.policy.trust_remote_code
    return AutoModelForCausalLM.from_pretrained(folder, dtype=_dtype(config), trust_remote_code=trust)


def _with_peft(model: str, adapter: Path, config: TrainingConfig) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(_hugging_face(model, config), adapter)


def _plain(output: Path) -> Conversion:
    return Conversion(output, sorted(str(f.relative_to(output)) for f in output.rglob("*") if f.is_file()))


def _verified(worker: MegatronPolicyWorker, output: Path, load: Any) -> Conversion:
    """Compare the trainer's log-probabilities with those of what `load` opens; a difference is a ConversionError."""
    batch = probe(worker.model.vocab_size)
    trainer = torch.cat(worker.logprobs([batch]))
    other = hugging_face_logprobs(load(), batch, worker.config.temperature)
    difference = (trainer - other).abs()[:, 1:]
    mean, largest = float(difference.mean()), float(difference.max())
    precision = worker.config.policy.precision
    worst = largest if precision == "float32" else mean
    if not worst < _TOLERANCE[precision]:  # also when it is not a number
        raise ConversionError(
            f"{output} does not compute what the trainer computes: |difference| in log-probability is {mean:.3g} on "
            f"average, at most {largest:.3g}"
        )
    plain = _plain(output)
    return Conversion(plain.output, plain.files, mean, largest)
