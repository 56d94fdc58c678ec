"""Checks that all ranks are about to do the same, with errors that say how they differ."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest

from byteps.errors import BytePSError, InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.ops import Buffer, ReduceOp, push_pull_and_wait
from byteps.runtime import current_job

__all__ = ["are_alike", "check_agreement", "look_for_differences"]

log = logging.getLogger("byteps")


def check_agreement(caller: str, mine: Sequence[str], name: str) -> None:
    """Compares descriptions of what the ranks are about to do. Blocks until all have called it.

    Args:
        caller: beginning of the error message.
        mine: a line for each thing that must be the same on all ranks.
        name: the same on all ranks; other checks have other names.

    Raises:
        InvalidArgumentError: on all ranks. The message names two ranks and the first lines that
            differ.
    """
    if are_alike(mine, name):
        return
    job = current_job()
    reference = broadcast_object(list(mine), 0, f"{name}.lines")
    (rank,) = _maxima([0 if list(mine) == reference else job.rank], f"{name}.other")
    theirs = broadcast_object(list(mine), rank, f"{name}.lines")
    here, there = next(pair for pair in zip_longest(reference, theirs) if pair[0] != pair[1])
    _wait_until_all_know(name)
    raise InvalidArgumentError(
        f"{caller}: the ranks differ: rank 0 has {here or 'nothing more'}; rank {rank} has {there or 'nothing more'}. "
        "All ranks must make the same calls in the same order, with the same parameters and arguments"
    )


def are_alike(mine: Sequence[str], name: str) -> bool:
    """Whether all ranks have the same lines; see `check_agreement`.

    Blocks until all have called it.
    """
    if current_job().size == 1:
        return True
    digest = _digest(mine)
    highest, lowest = _maxima([digest, -digest], f"{name}.digest")
    return highest == -lowest


def look_for_differences(
    caller: str, weights: Callable[[], Sequence[int]], hyperparameters: Callable[[], Sequence[str]], name: str
) -> None:
    """Checks whether weights or hyperparameters differ between ranks.

    BYTEPS_DIFFERENCES says whether a difference is a warning or an error. Call it once before the
    first step, after weights have been broadcast. Blocks until all ranks have called it.

    Args:
        caller: beginning of the message.
        weights: returns hashes of this rank's weights.
        hyperparameters: returns a line for each hyperparameter.
        name: see `check_agreement`.

    Raises:
        InvalidArgumentError: on all ranks, with BYTEPS_DIFFERENCES=error.
    """
    job = current_job()
    if job.size == 1 or job.config.differences == "ignore":
        return
    lines = list(hyperparameters())
    digests = [_digest([str(number) for number in weights()]), _digest(lines)]
    maxima = _maxima([sign * digest for digest in digests for sign in (1, -1)], f"{name}.values")
    found: list[str] = []
    concerned = {0}
    if maxima[0] != -maxima[1]:
        others = _unlike_rank_0(digests[0], f"{name}.weights")
        found.append(
            f"the weights of {_ranks(others)} are not those of rank 0: broadcast one rank's before the first step"
        )
        concerned.update(others)
    if maxima[2] != -maxima[3]:
        others = _unlike_rank_0(digests[1], f"{name}.hyperparameters")
        here, there = (broadcast_object(lines, rank, f"{name}.lines") for rank in (0, others[0]))
        pair = next(pair for pair in zip_longest(here, there, fillvalue="nothing") if pair[0] != pair[1])
        found.append(f"rank 0 has {pair[0]}, and {_ranks(others)} differ, rank {others[0]} having {pair[1]}")
        concerned.update(others)
    if not found:
        return
    message = f"{caller}: the ranks will train apart: {'; '.join(found)}. (See the setting BYTEPS_DIFFERENCES)"
    if job.config.differences == "error":
        _wait_until_all_know(name)
        raise InvalidArgumentError(message)
    if job.rank in concerned:
        log.warning(message)


def _wait_until_all_know(name: str) -> None:
    """Waits for ranks that do not have all parts of the message yet.

    A rank that raises may end the job for them, also in this wait, where they need nothing more.
    """
    with suppress(BytePSError):
        _maxima([0], f"{name}.known")


def _digest(lines: Sequence[str]) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:7], "big")


def _unlike_rank_0(digest: int, name: str) -> list[int]:
    """Returns the ranks whose digest differs from rank 0's."""
    job = current_job()
    digests = _maxima([digest if rank == job.rank else 0 for rank in range(job.size)], name)
    return [rank for rank in range(job.size) if digests[rank] != digests[0]]


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _maxima(numbers: list[int], name: str) -> list[int]:
    """Returns the maximum of each number over all ranks."""
    memory = (ctypes.c_int64 * len(numbers))(*numbers)
    buffer = Buffer(ctypes.addressof(memory), ctypes.sizeof(memory), "int64", memory)
    push_pull_and_wait(buffer, name, ReduceOp.Max)
    return list(memory)
