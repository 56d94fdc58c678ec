"""A rendezvous of all ranks of a group in its store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError

from byteps import errors
from byteps.errors import BytePSError, PeerLostError, TimeoutError
from byteps.torch.c10d.group_info import GroupInfo

__all__ = ["meet"]

_POLL_S = 1.0


def meet(info: GroupInfo, limit_s: float, invite: Callable[[], Any], watch: Callable[[], None]) -> Any:
    """Waits for all ranks, and returns on each of them what `invite` has returned on rank 0.

    Args:
        info: of the group.
        limit_s: limit of the wait.
        invite: called on rank 0 when all ranks have come; returns something for JSON.
        watch: called about every second of the wait; raises if waiting is of no use.

    Raises:
        TimeoutError: on all ranks that have come: some have not; or rank 0 has come but does not
            answer.
        BytePSError: on all ranks: `invite` or `watch` has raised it on rank 0.
    """
    store = info.store
    # A store may outlive groups, as torchrun's does. The number keeps their entries apart.
    number = store.add(f"byteps/meetings/{info.rank}", 1)
    answer, arrivals = f"byteps/answer/{number}", [f"byteps/here/{number}/{rank}" for rank in range(info.size)]
    store.set(arrivals[info.rank], "")
    if info.rank > 0:
        if not _wait(info, [answer], limit_s, watch):
            raise _late(info, arrivals, limit_s)
        said = json.loads(store.get(answer))
        if "error" in said:
            raise getattr(errors, said["error"])(said["text"])
        return said["invitation"]
    try:
        if not _wait(info, arrivals, limit_s, watch):
            raise _late(info, arrivals, limit_s)
        said = {"invitation": invite()}
    except BytePSError as error:
        store.set(answer, json.dumps({"error": type(error).__name__, "text": str(error)}))
        raise
    store.set(answer, json.dumps(said))
    return said["invitation"]


def _wait(info: GroupInfo, keys: list[str], limit_s: float, watch: Callable[[], None]) -> bool:
    """Returns whether all keys are set before the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            info.store.wait(keys, timedelta(seconds=max(0.001, min(_POLL_S, left_s))))
            return True
        except DistNetworkError as error:
            raise PeerLostError(f"the store of process group '{info.name}' cannot be reached: {error}") from error
        except RuntimeError:  # not all are set
            watch()
        if left_s <= 0:
            return False


def _late(info: GroupInfo, arrivals: list[str], limit_s: float) -> TimeoutError:
    """Returns the error of a rank whose wait has reached the limit."""
    missing = [
        known for known, arrival in zip(info.global_ranks, arrivals, strict=True) if not info.store.check([arrival])
    ]
    if not missing:
        return TimeoutError(
            f"all {info.size} ranks came to process group '{info.name}', and rank {info.global_ranks[0]} has not "
            f"answered within {limit_s:g} s: expected it to tell the address of its job; BYTEPS_START_TIMEOUT_S and "
            "the group's timeout are the limits"
        )
    return TimeoutError(
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not come to process group "
        f"'{info.name}' of {info.size} ranks within {limit_s:g} s: expected all of them to call "
        "init_process_group, and the first collective of a group of some ranks; BYTEPS_START_TIMEOUT_S and the "
        "group's timeout are the limits"
    )
