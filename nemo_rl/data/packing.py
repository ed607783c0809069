"""Which sequences share a micro-batch, and which rank gets which. Integers in, integers out.

A *bin* is a list of sequence indices whose tokens form one micro-batch. How they lie in it is `packed_layout`'s.
"""

from collections.abc import Sequence
from enum import StrEnum

Bin = list[int]


class PackingAlgorithm(StrEnum):
    CONCATENATIVE = "concatenative"
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    MODIFIED_FIRST_FIT_DECREASING = "modified_first_fit_decreasing"


def pack_sequences(lengths: Sequence[int], capacity: int, algorithm: PackingAlgorithm | str) -> list[Bin]:
    """Bins of at most `capacity` tokens that hold every sequence once; indices within a bin ascend.

    concatenative                   fill a bin in the given order, open the next when one does not fit
    first_fit_decreasing            longest first, each into the first bin with room; at most 11/9 of the optimum
    modified_first_fit_decreasing   Johnson & Garey 1985, "A 71/60 theorem for bin packing": at most 71/60;
                                    the plain first fit is taken where it needs fewer bins
    """
    for index, length in enumerate(lengths):
        if length > capacity:
            raise ValueError(f"sequence {index} has {length} tokens, more than the {capacity} tokens of a micro-batch")
    match PackingAlgorithm(algorithm):
        case PackingAlgorithm.CONCATENATIVE:
            bins = _concatenative(lengths, capacity)
        case PackingAlgorithm.FIRST_FIT_DECREASING:
            bins = _first_fit(_longest_first(lengths), lengths, capacity)
        case PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING:
            # Its guarantee is about the worst case; on a few dozen sequences plain first-fit is often a bin better.
            plain = _first_fit(_longest_first(lengths), lengths, capacity)
            bins = min(_modified_first_fit_decreasing(lengths, capacity), plain, key=len)
    return [sorted(members) for members in bins]


def balance_by_tokens(lengths: Sequence[int], num_shards: int, *, equal_counts: bool) -> list[Bin]:
    """Assign sequences to `num_shards` data-parallel ranks with nearly equal token totals; indices ascend.

    Longest first, each to the rank with the fewest tokens (at most 4/3 of the best possible maximum). With
    `equal_counts` ranks also hold equally many sequences, or differ by one where the number does not divide.
    """
    shards: list[Bin] = [[] for _ in range(num_shards)]
    totals = [0] * num_shards
    small, larger_shards = divmod(len(lengths), num_shards)
    for index in _longest_first(lengths):
        full = [len(shard) > small for shard in shards]
        open_shards = [
            rank
            for rank, shard in enumerate(shards)
            if not equal_counts or len(shard) < small or (len(shard) == small and sum(full) < larger_shards)
        ]
        lightest = min(open_shards, key=lambda rank: (totals[rank], len(shards[rank]), rank))
        shards[lightest].append(index)
        totals[lightest] += lengths[index]
    return [sorted(shard) for shard in shards]


def equalize_bins(bins_by_rank: Sequence[Sequence[Bin]], lengths: Sequence[int], multiple: int) -> list[list[Bin]]:
    """Give every rank the same number of micro-batches, a multiple of `multiple`; Megatron's schedules need that.

    A rank that has too few splits its heaviest bin that holds more than one sequence; when all hold one,
    it appends empty bins, which take part in collectives and contribute nothing. Order is otherwise kept.
    """
    most = max((len(bins) for bins in bins_by_rank), default=0)
    target = -(-most // multiple) * multiple
    return [_split_to(target, bins, lengths) for bins in bins_by_rank]


def _split_to(target: int, bins: Sequence[Bin], lengths: Sequence[int]) -> list[Bin]:
    result = [list(members) for members in bins]
    while len(result) < target:
        divisible = [position for position, members in enumerate(result) if len(members) > 1]
        if not divisible:
            return result + [[] for _ in range(target - len(result))]
        heaviest = max(divisible, key=lambda position: sum(lengths[i] for i in result[position]))
        members = result[heaviest]
        halves = balance_by_tokens([lengths[i] for i in members], 2, equal_counts=False)
        # Two zero-length members would both land on one side; cut by count then.
        halves = halves if all(halves) else [[0], list(range(1, len(members)))]
        result[heaviest : heaviest + 1] = [[members[i] for i in half] for half in halves]
    return result


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))


def _concatenative(lengths: Sequence[int], capacity: int) -> list[Bin]:
    bins: list[Bin] = []
    room = -1
    for index, length in enumerate(lengths):
        if length > room:
            bins.append([])
            room = capacity
        bins[-1].append(index)
        room -= length
    return bins


def _first_fit(order: Sequence[int], lengths: Sequence[int], capacity: int) -> list[Bin]:
    bins: list[Bin] = []
    rooms: list[int] = []
    for index in order:
        position = next((p for p, room in enumerate(rooms) if lengths[index] <= room), len(bins))
        if position == len(bins):
            bins.append([])
            rooms.append(capacity)
        bins[position].append(index)
        rooms[position] -= lengths[index]
    return bins


def _modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[Bin]:
    """Each sequence over half the capacity opens a bin; mediums, pairs of smalls, then anything fill them up."""
    order = _longest_first(lengths)
    bins = [[index] for index in order if 2 * lengths[index] > capacity]
    rooms = [capacity - lengths[members[0]] for members in bins]
    medium = [index for index in order if capacity < 3 * lengths[index] and 2 * lengths[index] <= capacity]
    small = [index for index in order if capacity < 6 * lengths[index] and 3 * lengths[index] <= capacity]
    tiny = [index for index in order if 6 * lengths[index] <= capacity]

    def move(index: int, position: int, source: list[int]) -> None:
        source.remove(index)
        bins[position].append(index)
        rooms[position] -= lengths[index]

    for position in range(len(bins)):
        if (chosen := _largest_fitting(medium, lengths, rooms[position])) is not None:
            move(chosen, position, medium)
    for position in reversed(range(len(bins))):
        if len(bins[position]) == 1 and len(small) > 1 and lengths[small[-1]] + lengths[small[-2]] <= rooms[position]:
            move(small[-1], position, small)
            partner = _largest_fitting(small, lengths, rooms[position])
            if partner is not None:
                move(partner, position, small)
    rest = medium + small + tiny
    for position in range(len(bins)):
        while (chosen := _largest_fitting(rest, lengths, rooms[position])) is not None:
            move(chosen, position, rest)
    return bins + _first_fit(rest, lengths, capacity)


def _largest_fitting(longest_first: Sequence[int], lengths: Sequence[int], room: int) -> int | None:
    return next((index for index in longest_first if lengths[index] <= room), None)
