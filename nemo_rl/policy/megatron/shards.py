"""How tensor parallelism cuts a parameter, and the way between a whole matrix and this rank's piece of it."""

from typing import NamedTuple

import torch
from megatron.core import parallel_state


class Cut(NamedTuple):
    """`pieces` along `dim`, of which this rank holds number `own`. In a `gated` matrix the rows are two halves, gate
    and up, and every rank holds its piece of the one above its piece of the other."""

    dim: int
    pieces: int
    own: int
    gated: bool = False


def cut_of(name: str, parameter: torch.nn.Parameter, gated_linear_unit: bool) -> Cut | None:
    """The cut of a parameter by its Megatron name; None if it is whole on every rank."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return None
    if not getattr(parameter, "allreduce", True):  # Megatron marks expert parameters so
        pieces = parallel_state.get_expert_tensor_parallel_world_size()
        index = parallel_state.get_expert_tensor_parallel_rank()
    else:
        pieces = parallel_state.get_tensor_model_parallel_world_size()
        index = parallel_state.get_tensor_model_parallel_rank()
    if pieces == 1:
        return None
    dim = int(parameter.partition_dim)  # type: ignore[attr-defined]
    gated = gated_linear_unit and dim == 0 and ".linear_fc1." in name and ".linear_in." not in name
    return Cut(dim, pieces, index, gated)


def whole_shape(parameter: torch.Tensor, cut: Cut | None) -> list[int]:
    """The shape of the matrix that `parameter` is a piece of."""
    shape = list(parameter.shape)
    if cut is not None:
        shape[cut.dim] *= cut.pieces
    return shape


def own_piece(whole: torch.Tensor, cut: Cut | None) -> torch.Tensor:
    """This rank's piece of a whole matrix."""
    if cut is None:
        return whole
    halves = whole.chunk(2) if cut.gated else [whole]
    return torch.cat([half.chunk(cut.pieces, dim=cut.dim)[cut.own] for half in halves])
