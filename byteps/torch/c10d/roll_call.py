"""Finds the ranks that do not wait for a collective, through the group's store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import Store

__all__ = ["who_is_missing"]

_GRACE_PERIOD_S = 2.0  # ranks that wait for the same collective do not reach their limits at once


def who_is_missing(store: Store, rank: int, global_ranks: Sequence[int], number: int) -> str:
    """Returns a sentence for a rank whose wait for the group's collective `number` timed out.

    Ranks that wait for the same collective call this at about the same time; the others are
    missing.
    """
    keys = [f"byteps/waits/{number}/{member}" for member in range(len(global_ranks))]
    try:
        store.set(keys[rank], "")
        with suppress(RuntimeError):  # some are missing
            store.wait(keys, timedelta(seconds=_GRACE_PERIOD_S))
        missing = [known for known, key in zip(global_ranks, keys, strict=True) if not store.check([key])]
    except RuntimeError as error:  # the store's process has ended
        return f"the store cannot tell which ranks are missing: {error}"
    if not missing:
        return "all ranks of the group wait for it"
    return f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} of the job did not wait for it"
