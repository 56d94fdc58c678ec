"""Points where a program must not run ahead of MXNet's engine: when it leaves its job, and when it forks."""

from __future__ import annotations

import logging
import os

import mxnet as mx

from byteps.runtime import call_before_leaving, is_initialized

__all__ = ["install"]

log = logging.getLogger("byteps")

_unseen: list[Exception] = []  # what failed when a fork waited


def install() -> None:
    """From now on a process leaves its job when its engine has done what the program asked for: others wait for it.

    And forks wait before MXNet does so itself, as a failed operation would end the process there.
    """
    call_before_leaving(_wait)
    os.register_at_fork(before=_wait_before_fork)


def _wait() -> Exception | None:
    """Returns what failed, now or at a fork."""
    try:
        mx.nd.waitall()
    except Exception as error:
        _unseen.append(error)
    first = _unseen[0] if _unseen else None
    _unseen.clear()
    return first


def _wait_before_fork() -> None:
    error = _wait() if is_initialized() else None
    if error is not None:
        log.error("fork: an array that nobody has waited for has failed: %s: %s", type(error).__name__, error)
        _unseen.append(error)
