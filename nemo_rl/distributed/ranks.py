"""Ranks with named axes. Megatron's order: tensor fastest, then context, data, pipeline."""

from dataclasses import dataclass

from nemo_rl.config.layout import ParallelLayout


@dataclass(frozen=True)
class RankPlace:
    """Where one policy rank sits on each axis."""

    rank: int
    tp: int
    cp: int
    dp: int
    pp: int


def places(layout: ParallelLayout) -> list[RankPlace]:
    """All ranks of a layout, in rank order."""
    return [
        RankPlace(
            rank,
            rank % layout.tp,
            rank // layout.tp % layout.cp,
            rank // (layout.tp * layout.cp) % layout.dp,
            rank // (layout.tp * layout.cp * layout.dp),
        )
        for rank in range(layout.world)
    ]


def reporters(layout: ParallelLayout) -> list[RankPlace]:
    """One rank per data-parallel index that holds losses and log-probabilities: last stage, first of tp and cp."""
    chosen = [p for p in places(layout) if p.tp == 0 and p.cp == 0 and p.pp == layout.pp - 1]
    return sorted(chosen, key=lambda p: p.dp)
