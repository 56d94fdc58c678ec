"""push_pulls as operations of MXNet's engine (csrc/mxnet/), and the exceptions that arrays carry if one fails."""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.error import register

from byteps import _core, errors, ops
from byteps.errors import AbortedError, BytePSError, UnsupportedError
from byteps.per_job import PerJob

__all__ = ["Description", "describe", "one_call", "push"]

_PATH = Path(__file__).with_name("_engine.so")


class Description(ctypes.Structure):
    """An NDArray, in MXNet's codes."""

    _fields_ = (
        ("elements", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("storage_type", ctypes.c_int),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
    )


class _Lane(ctypes.Structure):
    _fields_ = (
        ("array", ctypes.c_void_p),
        ("underway", ctypes.c_uint32),
        ("failed", ctypes.c_uint8),
        ("left_out", ctypes.c_uint8),
    )


class _PushPull(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_bytes", ctypes.c_size_t),
        ("bytes", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("lane", ctypes.POINTER(_Lane)),
        ("dtype", ctypes.c_uint8),
        ("op", ctypes.c_uint8),
        ("root", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("staleness", ctypes.c_uint8),
        ("step", ctypes.c_uint64),
    )


def _load() -> ctypes.CDLL:
    """The library, which knows the core and the engine.

    Raises:
        UnsupportedError: it is not there, or of another byteps; or this MXNet lacks functions.
    """
    if not _PATH.exists():
        raise UnsupportedError(f"{_PATH} is missing: this byteps was built without it; `pip install byteps` again")
    library = ctypes.CDLL(str(_PATH))
    expected = library.bps_mxnet_set_core(ctypes.c_void_p(_core.C_API))
    if expected != 0:
        raise UnsupportedError(f"{_PATH} is of another byteps: it needs version {expected} of the core's C API")
    array = mx.nd.empty((1,), ctx=mx.cpu())
    if library.bps_mxnet_set_engine(ctypes.c_void_p(_LIB._handle), array.handle) != 0:
        raise UnsupportedError(f"MXNet {mx.__version__}: {_LIB._name} lacks C functions of 1.9: install the wheel")
    return library


_library = _load()
_describe, _push_pull = _library.bps_mxnet_describe, _library.bps_mxnet_push_pull


def describe(array: mx.nd.NDArray) -> Description:
    """What the array is, without waiting for it."""
    description = Description()
    check_call(_describe(array.handle, ctypes.byref(description)))
    return description


class _NamedLane:
    """What goes by one name, which is a place in the engine: see csrc/mxnet/engine_operation.h."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()
        self.lane = _Lane()
        self.pointer = ctypes.pointer(self.lane)
        self.arrays: list[mx.nd.NDArray] = []
        self._renew()

    def _renew(self) -> None:
        self.arrays.append(mx.nd.empty((1,), ctx=mx.cpu()))  # another thread may be about to use the one before
        self.lane.array = self.arrays[-1].handle

    def recover(self) -> None:
        """After an error: makes the next operation independent of it, if ranks still agree on how many there were.

        Raises:
            AbortedError: they need not.
        """
        name = self.name.decode()
        if self.lane.left_out:
            raise AbortedError(
                f"push_pull of '{name}': after an error MXNet has left out an operation by this name, in which other "
                "ranks may have taken part: end the program, or call suspend() and resume() on all ranks"
            )
        if self.lane.underway:
            raise AbortedError(
                f"push_pull of '{name}': another one by this name has failed, and more of them are behind it: call "
                "mxnet.nd.waitall(), which raises what it failed of"
            )
        self._renew()  # the engine leaves out what follows on the old one
        self.lane.failed = 0


class _Lanes:
    """Those of one job."""

    def __init__(self) -> None:
        self.by_name: dict[str, _NamedLane] = {}
        self.lock = threading.Lock()
        _all_lanes.append(self)


_all_lanes: list[_Lanes] = []  # the engine may still have operations of a job that was left
_lanes = PerJob(_Lanes)
os.register_at_fork(after_in_child=_lanes.forget)


def push(
    source: mx.nd.NDArray,
    target: mx.nd.NDArray,
    nbytes: int,
    name: str,
    dtype: int,
    op: int,
    *,
    root: int = 0,
    priority: int = 0,
    staleness: int = 0,
    step: int = 0,
) -> None:
    """Has the engine reduce `source` over all ranks into `target`, which may be the same, once it is computed.

    Args:
        source: dense, on the CPU. What is done with it later waits.
        target: of the same size.
        nbytes: of each of them.
        name: the same on all ranks. What goes by one name goes in the order of calls.
        dtype: the core's code.
        op: the core's code.
        root: of a broadcast.
        priority: larger ones go first. 32 bits.
        staleness: of what is kept; 255: unbounded.
        step: see `byteps.ops.push_pull_buffer`.

    Raises:
        AbortedError: others by this name have failed before, and it is not clear what became of them.
    """
    lanes = _lanes.get()
    with lanes.lock:
        named = lanes.by_name.get(name)
        if named is None:
            named = lanes.by_name[name] = _NamedLane(name)
        elif named.lane.failed or named.lane.left_out:
            named.recover()
    request = _PushPull(
        named.name,
        len(named.name),
        nbytes,
        source.handle,
        target.handle,
        named.pointer,
        dtype,
        op,
        root,
        operator.index(priority),
        staleness,
        step,
    )
    check_call(_push_pull(ctypes.byref(request)))


@contextmanager
def one_call(name: str | None, step: int = 0) -> Iterator[str]:
    """As `byteps.ops.one_call`: one that fails comes after those of its name that the engine has not begun."""
    with ops.one_call(name, step=step) as known:
        try:
            yield known
        except AbortedError:  # the name is unusable until all of its operations are over: they must not be waited for
            raise
        except Exception:
            named = _lanes.get().by_name.get(known)
            if named is not None:
                with suppress(MXNetError):
                    named.arrays[-1].wait_to_read()
            raise


def _exception_of(kind: type[BytePSError]) -> Callable[[str], Exception]:
    """Makes what MXNet raises for a message that begins with the name of `kind`: an exception of both families."""
    both: Any = type(kind.__name__, (kind, MXNetError), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return lambda message: both(message.partition(": ")[2])


for _name in errors.__all__:
    register(f"byteps.{_name}", _exception_of(getattr(errors, _name)))
