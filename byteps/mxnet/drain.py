"""Waits for MXNet's engine before the process leaves its job, and before it forks."""

from __future__ import annotations

import logging
import os

import mxnet as mx

from byteps.runtime import call_before_leaving, is_initialized

__all__ = ["install"]

log = logging.getLogger("byteps")

_unreported: list[Exception] = []  # errors found at forks, to be raised when the job is left


def install() -> None:
    """Makes this process wait for its engine before it leaves a job, and before it forks.

    Other ranks wait for operations that are still in the engine. Before a fork MXNet waits as well,
    but a failed operation would end the process there.
    """
    call_before_leaving(_drain)
    os.register_at_fork(before=_drain_before_fork)


def _drain() -> Exception | None:
    """Returns the first error, of now or of an earlier fork."""
    try:
        mx.nd.waitall()
    except Exception as error:
        _unreported.append(error)
    first = _unreported[0] if _unreported else None
    _unreported.clear()
    return first


def _drain_before_fork() -> None:
    error = _drain() if is_initialized() else None
    if error is not None:
        log.error("fork: an array that nobody has waited for has failed: %s: %s", type(error).__name__, error)
        _unreported.append(error)
