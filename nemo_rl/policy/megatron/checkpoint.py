"""Policy state on disk in Megatron's distributed checkpoint format: trainable weights, optimizer, schedule, RNG.

Any parallel layout reads what any other wrote. The frozen base is not written: it is where it always was.
"""

import logging
import queue
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException

from nemo_rl.policy.megatron.model import PolicyModel
from nemo_rl.policy.megatron.optimizer import Optimization
from nemo_rl.utils.checkpoint_files import CheckpointError

logger = logging.getLogger(__name__)

# `fully_reshardable` is the form of the distributed optimizer's state that any TP, PP and DP size can read.
# Layers get names of their own, since not all of them need have adapters.
_METADATA: dict[str, Any] = {  # always handed over as a copy: Megatron adds process groups to it
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
    "chained_optim_avoid_prefix": True,
    "non_homogeneous_layers": True,
    "singleton_local_shards": False,
}


def save_policy(model: PolicyModel, optimization: Optimization, folder: Path) -> None:
    """Write the state of all ranks to `folder`. Collective."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_in_this_process()
    torch.distributed.barrier()
    state = _state(model, optimization, is_loading=False) | {"about": _about(model), "rng": _gather_rng()}
    # Rank 0's common part differs from other ranks' by design (param groups of its stage): no check that they agree.
    dist_checkpointing.save(state, str(folder), validate_access_integrity=False, content_metadata=dict(_METADATA))
    torch.distributed.barrier()


def _write_in_this_process() -> None:
    """Megatron's writer hands its results over through a manager process, which its asynchronous mode needs: one more
    process per rank that imports everything and outlives a rank that is killed. Saving here is synchronous."""
    if filesystem_async._results_queue is None:
        filesystem_async._results_queue = queue.Queue()


def load_policy(model: PolicyModel, optimization: Optimization, folder: Path) -> None:
    """Read what `save_policy` wrote, at this or another parallel layout. Collective.

    Raises CheckpointError if the folder is damaged or belongs to other adapters.
    """
    try:
        common = dist_checkpointing.load_common_state_dict(str(folder))
    except (Exception, CheckpointException) as error:
        raise CheckpointError(f"{folder} is not a readable policy checkpoint: {_first_line(error)}") from error
    _check_same_training(common.get("about"), _about(model), folder)
    try:
        state = dist_checkpointing.load(
            _state(model, optimization, is_loading=True), str(folder), validate_access_integrity=False
        )
    except (Exception, CheckpointException) as error:  # torch's CheckpointException is not an Exception
        raise CheckpointError(f"{folder} is damaged: {_first_line(error)}") from error
    try:
        _load_optimizer(optimization, state["optimizer"])
    except ValueError as error:
        if "parameter group" not in str(error):
            raise
        raise CheckpointError(
            f"{folder} was saved at a layout that groups the optimizer's parameters otherwise, as experts under tensor "
            "parallelism are; resume at the layout that saved it, or start from its adapters"
        ) from error
    _copy_weights(model, state)
    optimization.scheduler.load_state_dict(common["scheduler"])
    _restore_rng(common["rng"])


def load_weights(model: PolicyModel, folder: Path) -> None:
    """Read the trainable weights alone, for a model that will not be trained. Collective."""
    try:
        state = dist_checkpointing.load(_model_state(model), str(folder), validate_access_integrity=False)
    except (Exception, CheckpointException) as error:
        raise CheckpointError(f"{folder} is not a readable policy checkpoint: {_first_line(error)}") from error
    _copy_weights(model, state)


def _copy_weights(model: PolicyModel, state: dict[str, Any]) -> None:
    with torch.no_grad():
        for index, module in enumerate(model.modules):
            for name, parameter in _trainable(module).items():
                parameter.copy_(state[f"model{index}"][name])


def _trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _model_state(model: PolicyModel) -> dict[str, Any]:
    """Trainable weights, described by Megatron's sharded tensors."""
    state: dict[str, Any] = {}
    for index, module in enumerate(model.modules):
        wanted = _trainable(module)
        sharded: dict[str, Any] = cast(Any, module).sharded_state_dict(metadata=dict(_METADATA))
        if lost := sorted(wanted.keys() - sharded.keys()):
            raise CheckpointError(f"{len(lost)} trainable tensors have no place in a checkpoint, first: {lost[0]}")
        state[f"model{index}"] = {name: sharded[name] for name in wanted}
    return state


def _state(model: PolicyModel, optimization: Optimization, *, is_loading: bool) -> dict[str, Any]:
    """What is cut over ranks; the schedule is the same everywhere."""
    state = _model_state(model)
    tensors = {key: value for part in state.values() for key, value in part.items()}
    _create_moments(optimization)
    state["optimizer"] = optimization.optimizer.sharded_state_dict(
        tensors, is_loading=is_loading, metadata=dict(_METADATA)
    )
    state["scheduler"] = optimization.scheduler.state_dict()
    return state


def _parts(optimization: Optimization) -> list[Any]:
    outer = optimization.optimizer
    return list(getattr(outer, "chained_optimizers", [outer]))


def _load_optimizer(optimization: Optimization, state: dict[Any, Any]) -> None:
    """Hand each optimizer its state. Megatron's distributed optimizer trips over torch's Adam, which keeps its step
    count as a tensor among the moments; so the count is a plain number while moments and masters are put back."""
    parts = _parts(optimization)
    for index, part in enumerate(parts):
        own = state if len(parts) == 1 else state[index]
        if not isinstance(part, DistributedOptimizer):
            if isinstance(part.optimizer, torch.optim.Adam):  # Megatron leaves a step count of zero out
                own.get("optimizer", own)["state"].setdefault("common_step", torch.zeros(()))
            part.load_state_dict(own)
            continue
        moments = own.pop("param_state")
        part.load_state_dict(own)
        counted = [held for held in part.optimizer.state.values() if isinstance(held.get("step"), torch.Tensor)]
        counts = [held["step"].clone() for held in counted]
        for held, count in zip(counted, counts, strict=True):
            held["step"] = float(count)
        part.load_parameter_state_from_fully_reshardable(moments)
        for held, count in zip(counted, counts, strict=True):
            held["step"] = count


def _create_moments(optimization: Optimization) -> None:
    """Give torch's Adam the state that its first step would create. Megatron's own way forgets the step count, without
    which its distributed optimizer cannot describe itself."""
    for megatron_optimizer in _parts(optimization):
        inner = megatron_optimizer.optimizer
        if not isinstance(inner, torch.optim.Adam):
            continue
        for parameter in (p for group in inner.param_groups for p in group["params"] if not inner.state[p]):
            inner.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _about(model: PolicyModel) -> dict[str, Any]:
    """What a checkpoint must agree with whoever loads it."""
    about: dict[str, Any] = {
        "precision": str(model.dtype).removeprefix("torch."),
        "adapters": model.adapters is not None,
    }
    if model.adapters is not None:
        lora = model.adapters.lora
        about |= {"dim": lora.dim, "alpha": lora.alpha, "target_modules": list(lora.target_modules)}
        about |= {"exclude_modules": list(lora.exclude_modules)}
    return about


def _check_same_training(saved: dict[str, Any] | None, own: dict[str, Any], folder: Path) -> None:
    if saved is None:
        raise CheckpointError(f"{folder} was not written by nemo_rl's policy")
    for key in [*own, *(saved.keys() - own.keys())]:
        if saved.get(key) != own.get(key):
            raise CheckpointError(f"{folder} holds a policy with {key}={saved.get(key)}; this run has {own.get(key)}")


def _gather_rng() -> list[dict[str, Any]]:
    """Random generator states of all ranks, in rank order: small, so rank 0 writes them as they are."""
    own: dict[str, Any] = {"torch": torch.get_rng_state(), "megatron": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        own["cuda"] = torch.cuda.get_rng_state()
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, own)
    return states


def _restore_rng(states: list[dict[str, Any]]) -> None:
    """Exact at the layout that saved. Elsewhere there is no right answer, and no need: nothing in a step is random."""
    if len(states) != torch.distributed.get_world_size():
        logger.info("the checkpoint was saved by %d ranks: random generators stay as seeded", len(states))
        return
    own = states[torch.distributed.get_rank()]
    torch.set_rng_state(own["torch"])
    get_cuda_rng_tracker().set_states(own["megatron"])
    if torch.cuda.is_available() and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"])


def _first_line(error: BaseException) -> str:
    """The cause in one line; torch's message of a failed load is a header and a traceback."""
    lines = [line for line in str(error).strip().splitlines() if line]
    if not lines:
        return type(error).__name__
    return lines[-1] if isinstance(error, CheckpointException) else f"{type(error).__name__}: {lines[0]}"
