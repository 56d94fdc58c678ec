"""The image of the virtual machine: kernel, busybox and modules, fetched once into build/."""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import cpio, kernel_modules

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "rdma-vm"
_RECIPE = (Path(__file__), Path(cpio.__file__), Path(kernel_modules.__file__))
_COMMAND_LIMIT_S = 300.0  # a download of 70 MB
_APT_GET = ("apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3")
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"


class ImageError(Exception):
    """The kernel or its surroundings could not be prepared."""


@dataclass(frozen=True)
class Image:
    """Files that qemu starts from."""

    kernel: Path
    initramfs: Path  # busybox and modules; without an init program, which the machine adds


def why_impossible() -> str | None:
    """Returns what is missing for a virtual machine with RDMA devices; None: nothing."""
    if platform.machine() != "x86_64":
        return f"the kernel is fetched for x86_64, this is {platform.machine()}"
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "no apt-get or dpkg-deb, and the kernel comes from a Debian package"
    return None


def prepared() -> Image:
    """Returns the image, which it makes first unless that has been done. Root is not needed.

    Two processes do not make it at the same time. It takes about 10 s and 70 MB of downloads.

    Raises:
        ImageError: with what failed.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    image = Image(FOLDER / "kernel", FOLDER / "initramfs")
    made_by = FOLDER / "made-by"
    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in _RECIPE)).hexdigest()
    with locked(FOLDER / "image.lock"):
        if not made_by.exists() or made_by.read_text() != recipe:
            made_by.unlink(missing_ok=True)
            _make(image)
            made_by.write_text(recipe)
    return image


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock for this process; it ends with the process at the latest."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(image: Image) -> None:
    if reason := why_impossible():
        raise ImageError(reason)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name)
        unpacked = folder / "unpacked"
        for package in (_kernel_package(), "busybox-static"):
            _run(*_APT_GET, "download", package, folder=folder)
        for archive in folder.glob("*.deb"):
            _run("dpkg-deb", "-x", archive, unpacked, folder=folder)
        image.kernel.write_bytes(_quick_to_boot(_only(unpacked, "boot/vmlinuz-*").read_bytes()))
        image.initramfs.write_bytes(_initramfs(unpacked))


def _kernel_package() -> str:
    """The newest kernel that apt knows of, whose lists may be missing so far."""
    for has_tried in (False, True):
        listed = _run("apt-cache", "depends", "linux-image-amd64", folder=FOLDER, may_fail=True)
        if found := re.search(r"Depends: (linux-image-\d\S+)", listed):
            return found[1]
        if not has_tried and os.geteuid() == 0:
            _run(*_APT_GET, "update", folder=FOLDER)
    raise ImageError("apt-cache depends linux-image-amd64: expected a kernel, found none; try apt-get update")


def _initramfs(unpacked: Path) -> bytes:
    try:
        modules = kernel_modules.load_order(_only(unpacked, "**/lib/modules/*"))
    except kernel_modules.ModuleMissingError as error:
        raise ImageError(str(error)) from error
    busybox = _only(unpacked, "**/bin/busybox").read_bytes()
    entries = {"bin/busybox": (cpio.PROGRAM, busybox), "bin/sh": (cpio.LINK, b"busybox")}
    entries |= {f"modules/{name}.ko": (cpio.FILE, content) for name, content in modules.items()}
    entries["modules/order"] = (cpio.FILE, "".join(f"{name}\n" for name in modules).encode())
    return cpio.archive(entries)


def _quick_to_boot(image: bytes) -> bytes:
    """The kernel inside its compressed image: an emulated processor takes seconds to unpack it.

    Source: Documentation/arch/x86/boot.rst of Linux. An image that is compressed in another way
    boots as it is.
    """
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    packed = image[start : start + length]
    if not packed.startswith(_XZ):
        return image
    # The size follows, which is not part of the format.
    kernel = lzma.LZMADecompressor().decompress(packed)
    return kernel if kernel.startswith(_ELF) else image


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ImageError(f"{pattern} in the packages of kernel and busybox: expected one, found {len(found)}")
    return found[0]


def _run(*command: str | Path, folder: Path, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(str(error)) from error
    if done.returncode and not may_fail:
        raise ImageError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout
