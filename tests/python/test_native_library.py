"""Loading of adapters' libraries."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from byteps import _core
from byteps.errors import UnsupportedError
from byteps.native_library import load_library


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, answer: int) -> list[int | None]:
    """Loads a library that returns `answer` when it gets the core. Returns the addresses that it got."""
    got: list[int | None] = []

    def set_core(core: ctypes.c_void_p) -> int:
        got.append(core.value)
        return answer

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(set_core=set_core))
    path = folder / "_adapter.so"
    path.touch()
    load_library(path, "set_core")
    return got


def test_a_library_gets_the_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load(monkeypatch, tmp_path, 0) == [_core.C_API]


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="another version of byteps: it needs version 7"):
        load(monkeypatch, tmp_path, 7)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"_adapter\.so is missing"):
        load_library(tmp_path / "_adapter.so", "set_core")
