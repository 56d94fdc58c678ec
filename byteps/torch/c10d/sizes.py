"""Of which sizes the push_pulls of a process group are.

A job keeps the names that it has seen until it ends, and a name has one size. Collectives of ever new sizes (pickled
objects, batches of uneven length) would fill the memory of its ranks, and in the end the job's list of names.
"""

from __future__ import annotations

__all__ = ["MAX_EXACT", "Sizes"]

MAX_EXACT = 256
_FINEST = 64  # bytes: a multiple of every element's
_CLASSES_BITS = 3  # eight classes from one power of two to the next: at most an eighth is padding


class Sizes:
    """The first sizes that a group uses are taken as they are, later ones rounded up. One thread at a time.

    All ranks of a group ask for the same sizes in the same order, and so get the same answers.
    """

    def __init__(self) -> None:
        self._exact: set[tuple[str, int]] = set()

    def padded(self, kind: str, nbytes: int) -> int:
        """The size of a push_pull of `nbytes` bytes; `kind` is the rest of what its name depends on."""
        key = kind, nbytes
        if key not in self._exact:
            if len(self._exact) >= MAX_EXACT:
                return _round_up(nbytes)
            self._exact.add(key)
        return nbytes


def _round_up(nbytes: int) -> int:
    step = max(_FINEST, 1 << max(0, (nbytes - 1).bit_length() - 1 - _CLASSES_BITS))
    return -(-nbytes // step) * step
