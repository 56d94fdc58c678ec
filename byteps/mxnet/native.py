"""push_pulls as operations of MXNet's engine (csrc/mxnet/), and their errors as exceptions."""

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

from byteps import errors, ops
from byteps.errors import AbortedError, BytePSError, UnsupportedError
from byteps.native_library import load_library
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


class _Variable(ctypes.Structure):
    _fields_ = (
        ("array", ctypes.c_void_p),
        ("pending", ctypes.c_uint32),
        ("failed", ctypes.c_uint8),
        ("skipped", ctypes.c_uint8),
    )


class _PushPull(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_bytes", ctypes.c_size_t),
        ("bytes", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("variable", ctypes.POINTER(_Variable)),
        ("dtype", ctypes.c_uint8),
        ("op", ctypes.c_uint8),
        ("root", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("staleness", ctypes.c_uint8),
        ("step", ctypes.c_uint64),
    )


def _load() -> ctypes.CDLL:
    """Loads the library and connects it to the core and to MXNet's engine.

    Raises:
        UnsupportedError: the library is missing or of another byteps, or this MXNet lacks
            functions.
    """
    library = load_library(_PATH, "bps_mxnet_set_core")
    array = mx.nd.empty((1,), ctx=mx.cpu())
    if library.bps_mxnet_set_engine(ctypes.c_void_p(_LIB._handle), array.handle) != 0:
        raise UnsupportedError(f"MXNet {mx.__version__}: {_LIB._name} lacks C functions of 1.9: install the wheel")
    return library


_library = _load()
_describe, _push_pull = _library.bps_mxnet_describe, _library.bps_mxnet_push_pull


def describe(array: mx.nd.NDArray) -> Description:
    """Describes the array without waiting for its value."""
    description = Description()
    check_call(_describe(array.handle, ctypes.byref(description)))
    return description


MOST_VARIABLES = 1 << 14  # of names that are idle


class _EngineVariable:
    """Orders the operations of one name: see csrc/mxnet/engine_operation.h."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()
        self.pushing = 0  # number of threads that push an operation
        self.state = _Variable()
        self.pointer = ctypes.pointer(self.state)
        self.arrays: list[mx.nd.NDArray] = []
        self._renew()

    def _renew(self) -> None:
        # The old array stays alive: another thread may be using it.
        self.arrays.append(mx.nd.empty((1,), ctx=mx.cpu()))
        self.state.array = self.arrays[-1].handle

    def is_idle(self) -> bool:
        """Whether nothing uses it, so that another one may replace it."""
        state = self.state
        return self.pushing == 0 and state.pending == 0 and not state.failed and not state.skipped

    def recover(self) -> None:
        """Makes the next operation independent of one that has failed.

        Raises:
            AbortedError: operations are pending, or ranks may disagree on how many there were.
        """
        name = self.name.decode()
        if self.state.skipped:
            raise AbortedError(
                f"push_pull of '{name}': after an error MXNet has skipped an operation of this name, in which other "
                "ranks may have taken part: end the program, or call suspend() and resume() on all ranks"
            )
        if self.state.pending:
            raise AbortedError(
                f"push_pull of '{name}': an earlier push_pull of this name has failed, and others are still pending: "
                "call mxnet.nd.waitall(), which raises the error"
            )
        self._renew()  # the engine skips all later operations on the old array
        self.state.failed = 0


class _EngineVariables:
    """The engine variables of one job."""

    def __init__(self) -> None:
        self.by_name: dict[str, _EngineVariable] = {}
        self.lock = threading.Lock()
        _all_variables.append(self)

    def take(self, name: str) -> _EngineVariable:
        """Returns the variable of a name for one operation. Call `put_back` when it is pushed."""
        with self.lock:
            variable = self.by_name.get(name)
            if variable is None:
                self._forget_idle()
                variable = self.by_name[name] = _EngineVariable(name)
            elif variable.state.failed or variable.state.skipped:
                variable.recover()
            variable.pushing += 1
            return variable

    def put_back(self, variable: _EngineVariable) -> None:
        with self.lock:
            variable.pushing -= 1

    def _forget_idle(self) -> None:
        """Makes room if names are used once and never again: the oldest half goes."""
        if len(self.by_name) < MOST_VARIABLES:
            return
        idle = [name for name, variable in self.by_name.items() if variable.is_idle()]
        for name in idle[: MOST_VARIABLES // 2]:
            del self.by_name[name]


# Engine variables of all jobs stay alive: operations of a job that was left may be pending.
_all_variables: list[_EngineVariables] = []
_variables = PerJob(_EngineVariables)
os.register_at_fork(after_in_child=_variables.forget)


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
    """Has the engine reduce `source` over all ranks into `target`. Does not wait.

    Args:
        source: dense array on the CPU. Later operations on it wait in the engine.
        target: dense array of the same size on the CPU, which may be `source`.
        nbytes: size of each of the two.
        name: the same on all ranks. Operations of one name run in the order of calls.
        dtype: data type, as the core's code.
        op: operation, as the core's code.
        root: root rank of a broadcast.
        priority: larger ones go first; must fit 32 bits.
        staleness: bound for parameters held by the services; 255: unbounded.
        step: see `byteps.ops.push_pull_buffer`.

    Raises:
        AbortedError: an operation of this name has failed, and others are pending or were skipped.
    """
    variables = _variables.get()
    variable = variables.take(name)
    try:
        request = _PushPull(
            variable.name,
            len(variable.name),
            nbytes,
            source.handle,
            target.handle,
            variable.pointer,
            dtype,
            op,
            root,
            operator.index(priority),
            staleness,
            step,
        )
        check_call(_push_pull(ctypes.byref(request)))
    finally:
        variables.put_back(variable)


@contextmanager
def one_call(name: str | None, step: int = 0) -> Iterator[str]:
    """`byteps.ops.one_call` for MXNet: a failed call waits for pending operations of its name."""
    with ops.one_call(name, step=step) as known:
        try:
            yield known
        except AbortedError:  # operations of this name may be pending: do not wait for them
            raise
        except Exception:
            variable = _variables.get().by_name.get(known)
            if variable is not None:
                with suppress(MXNetError):
                    variable.arrays[-1].wait_to_read()
            raise


def _exception_of(kind: type[BytePSError]) -> Callable[[str], Exception]:
    """Makes exceptions that are both a `kind` and an MXNetError, from messages with its name."""
    both: Any = type(kind.__name__, (kind, MXNetError), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return lambda message: both(message.partition(": ")[2])


for _name in errors.__all__:
    register(f"byteps.{_name}", _exception_of(getattr(errors, _name)))
