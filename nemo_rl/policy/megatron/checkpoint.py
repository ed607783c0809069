"""Policy state on disk in Megatron's distributed checkpoint format: trainable weights, optimizer, schedule, RNG."""

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject

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
    state = dist_checkpointing.load(
        _state(model, optimization, is_loading=True), str(folder), validate_access_integrity=False
    )
    for index, module in enumerate(model.modules):
        loaded = state[f"model{index}"]
        with torch.no_grad():
            for name, parameter in _savable(module).items():
                parameter.copy_(loaded[name])
    optimization.optimizer.load_state_dict(state["optimizer"])
    optimization.scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"]["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state["rng"]["cuda"])


def _savable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _state(model: PolicyModel, optimization: Optimization, *, is_loading: bool) -> dict[str, Any]:
    trainable = [_savable(module) for module in model.modules]
    sharded = [module.sharded_state_dict() for module in model.modules]
    state: dict[str, Any] = {
        f"model{index}": {_plain(key): value for key, value in part.items() if _plain(key) in names}
        for index, (part, names) in enumerate(zip(sharded, trainable, strict=True))
    }
    merged = {key: value for part in state.values() for key, value in part.items()}
    state["optimizer"] = optimization.optimizer.sharded_state_dict(merged, is_loading=is_loading, metadata=_METADATA)
    state["scheduler"] = optimization.scheduler.state_dict()
    state["rng"] = _rng_state()
    return state


def _plain(key: str) -> str:
    """Sharded state names adapters as modules do, once the wrapper's own level is put back."""
    return key


def _rng_state() -> Any:
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (torch.distributed.get_world_size(),), (torch.distributed.get_rank(),))
