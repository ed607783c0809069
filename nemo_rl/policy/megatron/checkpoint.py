"""Policy state on disk in Megatron's distributed checkpoint format: trainable weights, optimizer, schedule, RNG."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from nemo_rl.policy.megatron.model import PolicyModel
from nemo_rl.policy.megatron.optimizer import Optimization

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def save_policy(model: PolicyModel, optimization: Optimization, folder: Path) -> None:
    """Write this rank's part. With adapters only they are written: the base is where it always was. Collective."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(_state(model, optimization, is_loading=False), str(folder), validate_access_integrity=False)
    torch.distributed.barrier()


def load_policy(model: PolicyModel, optimization: Optimization, folder: Path) -> None:
    """Read what `save_policy` wrote, at this or another parallel layout. Collective."""
    _fill_moments(optimization)
    state = dist_checkpointing.load(
        _state(model, optimization, is_loading=True), str(folder), validate_access_integrity=False
    )
    _copy_weights(model, state)
    with _steps_are_loaded_apart(optimization):
        optimization.optimizer.load_state_dict(state["optimizer"])
    _own_steps(optimization)
    optimization.scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"]["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state["rng"]["cuda"])


def load_weights(model: PolicyModel, folder: Path) -> None:
    """Read the trainable weights alone, for a model that will not be trained. Collective."""
    _copy_weights(model, dist_checkpointing.load(_model_state(model), str(folder), validate_access_integrity=False))


def _copy_weights(model: PolicyModel, state: dict[str, Any]) -> None:
    for index, module in enumerate(model.modules):
        loaded = state[f"model{index}"]
        with torch.no_grad():
            for name, parameter in _savable(module).items():
                parameter.copy_(loaded[name])


def _optimizers(optimization: Optimization) -> list[Any]:
    """Megatron's optimizers; several when parameters are in groups with data-parallel sizes of their own."""
    return list(getattr(optimization.optimizer, "chained_optimizers", [optimization.optimizer]))


def _fill_moments(optimization: Optimization) -> None:
    """Give PyTorch's Adam the state that it would only make in its first step: Megatron loads into what is there."""
    for adam in (part.optimizer for part in _optimizers(optimization)):
        if not isinstance(adam, torch.optim.Adam):
            continue
        for parameter in (parameter for group in adam.param_groups for parameter in group["params"]):
            if not adam.state[parameter]:
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                adam.state[parameter] = {"step": torch.zeros(()), **moments}


def _own_steps(optimization: Optimization) -> None:
    """Megatron hands one step tensor to all parameters, and Adam would advance it once for each of them."""
    for part in _optimizers(optimization):
        for state in part.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()


@contextmanager
def _steps_are_loaded_apart(optimization: Optimization) -> Iterator[None]:
    """PyTorch's Adam counts steps in a tensor, which Megatron 0.19 loads with the parameter groups and then asks for
    again among the moments, where it is not: within this context it is handed back."""
    distributed = [part for part in _optimizers(optimization) if isinstance(part, DistributedOptimizer)]
    for part in distributed:
        part._set_main_param_and_optimizer_states = partial(_set_with_step, part)
    try:
        yield
    finally:
        for part in distributed:
            del part._set_main_param_and_optimizer_states


def _set_with_step(part: DistributedOptimizer, model_param: torch.nn.Parameter, tensors: dict[str, Any]) -> None:
    group, order = part.model_param_group_index_map[model_param]
    state = part.optimizer.state[part.optimizer.param_groups[group]["params"][order]]
    step = {"step": state["step"]} if "step" in state else {}
    DistributedOptimizer._set_main_param_and_optimizer_states(part, model_param, tensors | step)


def _savable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _state(model: PolicyModel, optimization: Optimization, *, is_loading: bool) -> dict[str, Any]:
    state = _model_state(model)
    merged = {key: value for part in state.values() for key, value in part.items()}
    state["optimizer"] = optimization.optimizer.sharded_state_dict(merged, is_loading=is_loading, metadata=_METADATA)
    state["scheduler"] = optimization.scheduler.state_dict()
    state["rng"] = _rng_state()
    return state


def _model_state(model: PolicyModel) -> dict[str, Any]:
    trainable = [_savable(module) for module in model.modules]
    sharded = [module.sharded_state_dict() for module in model.modules]
    return {
        f"model{index}": {_plain(key): value for key, value in part.items() if _plain(key) in names}
        for index, (part, names) in enumerate(zip(sharded, trainable, strict=True))
    }


def _plain(key: str) -> str:
    """Sharded state names adapters as modules do, once the wrapper's own level is put back."""
    return key


def _rng_state() -> Any:
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (torch.distributed.get_world_size(),), (torch.distributed.get_rank(),))
