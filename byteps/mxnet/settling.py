"""The end of a program, which MXNet may reach long before its arrays are computed."""

from __future__ import annotations

import logging

import mxnet as mx

from byteps.runtime import call_before_leaving

__all__ = ["settle_before_leaving"]

log = logging.getLogger("byteps")


def settle_before_leaving() -> None:
    """From now on a process leaves its job when its engine has done what the program asked for: others wait for it."""
    call_before_leaving(_settle)


def _settle() -> None:
    try:
        mx.nd.waitall()
    except Exception as error:  # nobody waited for those arrays, nor will
        log.error("leaving the job: the engine of MXNet failed: %s", error)
