"""The exceptions of byteps.

A message says what failed and where, what was expected, what was found, and what to do.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

__all__ = [
    "AbortedError",
    "ArgumentTypeError",
    "AuthenticationError",
    "BytePSError",
    "DataLossError",
    "DeviceError",
    "InternalError",
    "InvalidArgumentError",
    "NotFiniteError",
    "NotInitializedError",
    "PeerLostError",
    "TimeoutError",
    "UnsupportedError",
]


class BytePSError(Exception):
    """The base class of all exceptions of byteps."""

    counted = False  # whether the core has counted the call as failed (`byteps.ops.one_call`)

    if not TYPE_CHECKING:  # type checkers would lose the signature
        __init__ = Exception.__init__  # without it, TensorFlow's AutoGraph replaces the exception


class InvalidArgumentError(BytePSError, ValueError):
    """An invalid shape, dtype, name, setting or argument."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument of the wrong kind, such as a model instead of its parameters."""


class NotInitializedError(BytePSError, RuntimeError):
    """A call before `init` or after `shutdown`."""


class TimeoutError(BytePSError, builtins.TimeoutError):
    """A peer was silent, or a rank did not take part, for longer than the time limit."""


class PeerLostError(BytePSError, ConnectionError):
    """A process of the job died or cannot be reached."""


class AbortedError(BytePSError, RuntimeError):
    """The job was stopped because of another failure, which the message names."""


class DataLossError(BytePSError, RuntimeError):
    """Received bytes are corrupt."""


class DeviceError(BytePSError, RuntimeError):
    """A GPU, or its driver, has failed, on this rank or on the one that the message names."""


class AuthenticationError(BytePSError, PermissionError):
    """The peer of a connection does not know the job's secret, or belongs to another job."""


class UnsupportedError(BytePSError, NotImplementedError):
    """Not supported by this build or machine."""


class InternalError(BytePSError, RuntimeError):
    """A bug of byteps; please report it."""


class NotFiniteError(BytePSError, FloatingPointError):
    """A NaN or an infinite number was found by a check."""
