"""The exceptions of byteps. A message says what failed, where, what was expected, what was got, what to do."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

__all__ = [
    "AbortedError",
    "ArgumentTypeError",
    "AuthenticationError",
    "BytePSError",
    "DataLossError",
    "InternalError",
    "InvalidArgumentError",
    "NotFiniteError",
    "NotInitializedError",
    "PeerLostError",
    "TimeoutError",
    "UnsupportedError",
]


class BytePSError(Exception):
    """Base of all of them."""

    counted = False  # by the core: as a push_pull that has failed on all ranks (`byteps.ops.one_call`)

    if not TYPE_CHECKING:  # to which this would be a function of any type
        __init__ = Exception.__init__  # TensorFlow's AutoGraph replaces exceptions that it cannot see how to make


class InvalidArgumentError(BytePSError, ValueError):
    """A shape, dtype, name, setting or argument that cannot be used."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument of another kind than the one that is meant, such as a model in place of its parameters."""


class NotInitializedError(BytePSError, RuntimeError):
    """Used before `init` or after `shutdown`."""


class TimeoutError(BytePSError, builtins.TimeoutError):
    """A peer stayed silent, or a rank did not take part, for longer than allowed."""


class PeerLostError(BytePSError, ConnectionError):
    """A process of the job died or cannot be reached."""


class AbortedError(BytePSError, RuntimeError):
    """The job was stopped because of another failure, which the message names."""


class DataLossError(BytePSError, RuntimeError):
    """Bytes that cannot be what the peer meant to send."""


class AuthenticationError(BytePSError, PermissionError):
    """The other side of a connection does not know the job's secret, or is of another job."""


class UnsupportedError(BytePSError, NotImplementedError):
    """Not supported by this build or machine."""


class InternalError(BytePSError, RuntimeError):
    """A fault of byteps itself; please report it."""


class NotFiniteError(BytePSError, FloatingPointError):
    """A NaN or an infinite number where one was looked for."""
