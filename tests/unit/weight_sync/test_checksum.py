"""The checksum of a tensor's bytes: its definition in plain integers, and the damage that it notices."""

import pytest
import torch

from nemo_rl.weight_sync import checksum as module
from nemo_rl.weight_sync.checksum import checksum, checksums


def _by_definition(words: list[int], block: int) -> int:
    total = sum(word * (i % block % 65521 + 1) * (i // block + 1) for i, word in enumerate(words))
    return (total + 2**63) % 2**64 - 2**63


def test_known_values() -> None:
    assert checksum(torch.tensor([1, 2, 3], dtype=torch.int16)) == 1 * 1 + 2 * 2 + 3 * 3
    assert checksum(torch.tensor([-1], dtype=torch.int16)) == -1
    assert checksum(torch.tensor([1, 1, 5], dtype=torch.uint8)) == (1 + 256) * 1 + 5 * 2, "odd bytes: padded with zero"
    assert checksum(torch.zeros(10)) == 0 and checksum(torch.empty(0)) == 0


@pytest.mark.parametrize("count", [1, 63, 64, 65, 64 * 8, 64 * 8 + 1, 64 * 19 + 5])
def test_equals_the_definition_across_block_bounds(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module, "_BLOCK", 64)
    module._weights.cache_clear()
    words = torch.randint(-(2**15), 2**15, (count,), dtype=torch.int16, generator=torch.Generator().manual_seed(count))
    assert checksum(words) == _by_definition(words.tolist(), 64)
    module._weights.cache_clear()


def test_large_extreme_values_do_not_wrap_within_a_word() -> None:
    words = torch.full((70_000,), -(2**15), dtype=torch.int16)
    assert checksum(words) == _by_definition(words.tolist(), 1 << 22)


def test_notices_change_swap_shift_and_rounding() -> None:
    tensor = torch.randn(300, 7, generator=torch.Generator().manual_seed(1))
    whole = checksum(tensor)
    changed = tensor.clone()
    changed[17, 3] = torch.nextafter(changed[17, 3], torch.tensor(9.0))
    swapped = tensor.clone()
    swapped[[4, 9]] = tensor[[9, 4]]
    for other in (changed, swapped, tensor.roll(1, 0), tensor.flatten().roll(1), tensor.bfloat16().float(), -tensor):
        assert checksum(other) != whole
    assert checksum(tensor.clone()) == whole


def test_depends_on_values_not_on_memory_layout_or_company() -> None:
    tensor = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous()) != checksum(tensor)
    assert checksums([tensor, tensor.t(), tensor[:0]]) == [checksum(tensor), checksum(tensor.t()), 0]
    assert checksums([]) == []
