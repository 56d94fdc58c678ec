"""Who of a group waits for a collective, asked by those whose time is up, in the group's store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import Store

__all__ = ["who_is_missing"]

_PATIENCE_S = 2.0  # ranks that wait for the same do not begin, nor end, at the same moment


def who_is_missing(store: Store, rank: int, global_ranks: Sequence[int], number: int) -> str:
    """What to add to the error of a rank that has waited in vain for the group's collective of that number.

    Whoever waits for it, too, says so here about now; the others do something else.
    """
    keys = [f"byteps/waits/{number}/{member}" for member in range(len(global_ranks))]
    try:
        store.set(keys[rank], "")
        with suppress(RuntimeError):  # not all of them
            store.wait(keys, timedelta(seconds=_PATIENCE_S))
        missing = [known for known, key in zip(global_ranks, keys, strict=True) if not store.check([key])]
    except RuntimeError as error:  # the store's process has ended
        return f"who is missing cannot be told: {error}"
    if not missing:
        return "all ranks of the group wait for it"
    return f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} of the job did not wait for it"
