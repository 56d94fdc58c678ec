"""All ranks of a group, at one time, in its store."""

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
    """What rank 0's `invite` returns, on every rank, once all of them are here. Blocks.

    Args:
        info: of the group.
        limit_s: how long the others are waited for.
        invite: called on rank 0, when the others have come; returns something for JSON.
        watch: called about every second while others are waited for; raises if that is in vain.

    Raises:
        TimeoutError: somebody did not come, on all ranks that did; or rank 0 did, and says nothing.
        BytePSError: what `invite` or `watch` raises on rank 0, on all ranks.
    """
    store = info.store
    # A store may outlive groups (torchrun's does): what an earlier meeting has left there is not read.
    number = store.add(f"byteps/meetings/{info.rank}", 1)
    answer, seats = f"byteps/answer/{number}", [f"byteps/here/{number}/{rank}" for rank in range(info.size)]
    store.set(seats[info.rank], "")
    if info.rank > 0:
        if not _wait(info, [answer], limit_s, watch):
            raise _late(info, seats, limit_s)
        said = json.loads(store.get(answer))
        if "error" in said:
            raise getattr(errors, said["error"])(said["text"])
        return said["invitation"]
    try:
        if not _wait(info, seats, limit_s, watch):
            raise _late(info, seats, limit_s)
        said = {"invitation": invite()}
    except BytePSError as error:
        store.set(answer, json.dumps({"error": type(error).__name__, "text": str(error)}))
        raise
    store.set(answer, json.dumps(said))
    return said["invitation"]


def _wait(info: GroupInfo, keys: list[str], limit_s: float, watch: Callable[[], None]) -> bool:
    """Whether all keys are set, in time."""
    deadline = time.monotonic() + limit_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            info.store.wait(keys, timedelta(seconds=max(0.001, min(_POLL_S, left_s))))
            return True
        except DistNetworkError as error:
            raise PeerLostError(f"the store of process group '{info.name}' cannot be reached: {error}") from error
        except RuntimeError:  # not yet
            watch()
        if left_s <= 0:
            return False


def _late(info: GroupInfo, seats: list[str], limit_s: float) -> TimeoutError:
    """What a rank says that has waited in vain."""
    missing = [known for known, seat in zip(info.global_ranks, seats, strict=True) if not info.store.check([seat])]
    if not missing:
        return TimeoutError(
            f"all {info.size} ranks came to process group '{info.name}', and rank {info.global_ranks[0]} has not "
            f"answered within {limit_s:g} s: expected it to say where its job is; BYTEPS_START_TIMEOUT_S and the "
            "group's timeout limit it"
        )
    return TimeoutError(
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not come to process group "
        f"'{info.name}' of {info.size} ranks within {limit_s:g} s: expected all of them to call "
        "init_process_group, and the first collective of a group of some ranks; BYTEPS_START_TIMEOUT_S and the "
        "group's timeout limit it"
    )
