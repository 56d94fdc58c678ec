"""The image is made once, and its modules are in an order that the kernel accepts."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

import pytest
from rdma import image
from rdma.kernel_modules import ModuleMissingError, load_order


def module(depends: str) -> bytes:
    """Returns the strings of a module as the kernel stores them, with its dependencies."""
    return b"\x7fELF...\0license=GPL\0depends=%b\0alias=depends=nothing\0" % depends.encode()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """The folder of a kernel's modules."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    (tmp_path / "modules.builtin").write_text("kernel/lib/base-lib.ko\n")
    (folder / "rxe.ko").write_bytes(module("core-part,udp_tunnel"))
    (folder / "core-part.ko").write_bytes(module(""))
    (folder / "udp_tunnel.ko.xz").write_bytes(lzma.compress(module("core-part,base_lib")))
    (folder / "unused.ko").write_bytes(module(""))
    (folder / "broken.ko").write_bytes(module("gone"))
    return tmp_path


def test_modules_come_after_what_they_depend_on(modules: Path) -> None:
    loaded = load_order(modules, ["rxe", "base_lib", "core_part"])
    assert list(loaded) == ["core_part", "udp_tunnel", "rxe"]
    assert loaded["udp_tunnel"] == module("core-part,base_lib")


@pytest.mark.parametrize("wanted", ["gone", "broken"])
def test_a_module_that_is_nowhere_is_named(modules: Path, wanted: str) -> None:
    with pytest.raises(ModuleMissingError, match="kernel module gone"):
        load_order(modules, [wanted])


def test_the_image_is_made_once_and_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[image.Image] = []

    def make(what: image.Image) -> None:
        made.append(what)
        if len(made) == 1:
            raise image.ImageError("no network")

    monkeypatch.setattr(image, "FOLDER", tmp_path / "new")
    monkeypatch.setattr(image, "_make", make)
    with pytest.raises(image.ImageError, match="no network"):
        image.prepared()
    assert len({image.prepared(), image.prepared(), *made}) == 1
    assert len(made) == 2


def test_a_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other: list[str | Path] = ["flock", "--nonblock", path, "true"]
    with image.locked(path):
        assert subprocess.run(other, check=False).returncode == 1
    assert subprocess.run(other, check=False).returncode == 0
