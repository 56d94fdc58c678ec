"""A played GPU (tests/played_cuda/) for programs of tests: memory, a stream, and byteps's view of it.

Played memory of the device is memory of the process, but byteps does not know that.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from byteps.ops import Buffer

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libcuda.so.1"
Array = np.ndarray[Any, Any]
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def build(folder: Path) -> Path:
    """Compiles the played driver. A process that has the result in LD_LIBRARY_PATH finds a GPU."""
    source = ROOT / "tests" / "played_cuda" / "played_cuda.cc"
    flags = ("-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-I", ROOT / "csrc")
    subprocess.run(["c++", *flags, source, "-o", folder / LIBRARY], check=True)
    return folder


class PlayedDevice:
    """The GPU 0 of a process that LD_LIBRARY_PATH leads to the played driver; byteps.device.Device."""

    def __init__(self) -> None:
        self.index = 0
        self._cuda = ctypes.CDLL(LIBRARY)
        self._kept: list[object] = []
        self._context = ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0)
        self._cuda.cuCtxPushCurrent_v2(self._context)
        self._cuda.cuStreamCreate(ctypes.byref(self._stream), 0)

    def current_stream(self) -> int:
        return self._stream.value or 0

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Returns an array in the memory of the device."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        address = ctypes.c_uint64()
        self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
        memory = (ctypes.c_uint8 * nbytes).from_address(address.value)
        return np.ctypeslib.as_array(memory).view(dtype).reshape(shape)

    def buffer(self, array: Array) -> Buffer:
        return Buffer(array.ctypes.data, array.nbytes, str(array.dtype), array, array.shape, device=self)

    def launch(self, kernel: Callable[[], object]) -> None:
        """Has the stream run `kernel`."""
        function = _HOST_FUNCTION(lambda _: kernel() and None)
        self._kept.append(function)
        self._cuda.cuLaunchHostFunc(self._stream, function, None)

    def synchronize(self) -> None:
        """Waits for the stream."""
        assert self._cuda.cuStreamSynchronize(self._stream) == 0
        self._kept.clear()

    def fail(self) -> None:
        """Has every call of the driver fail from now on."""
        self._cuda.played_cuda_fail_now(700)
