"""The sizes of a process group's push_pulls, which names depend on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from byteps.torch.c10d.sizes import MAX_EXACT, Sizes


def after(count: int) -> Sizes:
    sizes = Sizes()
    for number in range(count):
        sizes.padded("bytes", 10_000_000 + number)
    return sizes


def test_what_a_group_uses_again_is_never_padded() -> None:
    sizes = after(MAX_EXACT)
    for number in range(MAX_EXACT):
        assert sizes.padded("bytes", 10_000_000 + number) == 10_000_000 + number


def test_later_sizes_are_few_and_not_much_longer() -> None:
    sizes = after(MAX_EXACT)
    classes = set()
    for nbytes in (*range(1, 100_000), *(1 << bit for bit in range(40))):
        padded = sizes.padded("bytes", nbytes)
        classes.add(padded)
        assert padded % 64 == 0 and nbytes <= padded <= max(nbytes + 63, nbytes * 9 / 8)
        assert sizes.padded("bytes", padded) == padded
    assert len(classes) <= 8 * 40
    assert sizes.padded("bytes", 0) == 0


def test_kinds_have_sizes_of_their_own() -> None:
    sizes = after(MAX_EXACT - 1)
    assert sizes.padded("float32.Sum", 4) == 4
    assert sizes.padded("float64.Sum", 4) == 64
