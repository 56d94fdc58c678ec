"""Loads the libraries of adapters, which get the core as a table of C functions (csrc/c_api/)."""

from __future__ import annotations

import ctypes
from pathlib import Path

from byteps import _core
from byteps.errors import UnsupportedError

__all__ = ["check_built", "load_library"]


def check_built(path: Path) -> None:
    """Raises UnsupportedError if the library was not built."""
    if not path.exists():
        raise UnsupportedError(f"{path} is missing: this byteps was built without it; `pip install byteps` again")


def load_library(path: Path, set_core: str) -> ctypes.CDLL:
    """Loads the library and hands it the core.

    Args:
        path: path of the library.
        set_core: name of the library's function that takes the core. It returns 0, or the version
            of the C API that the library needs.

    Raises:
        UnsupportedError: the library is missing, or belongs to another version of byteps.
    """
    check_built(path)
    library = ctypes.CDLL(str(path))
    expected = getattr(library, set_core)(ctypes.c_void_p(_core.C_API))
    if expected != 0:
        raise UnsupportedError(
            f"{path} belongs to another version of byteps: it needs version {expected} of the core's C API"
        )
    return library
