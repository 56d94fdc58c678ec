"""Selects the kernel modules that the guest loads, in their order."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

# What the guest needs by name. What those depend on is read from them, but for the two that rxe
# asks the kernel for.
WANTED = (
    "virtio_pci",  # the machine's devices
    "virtio_console",  # output, and messages to who started the machine
    "9pnet_virtio",
    "9p",  # the host's files
    "overlay",  # something to write over them
    "crc32_generic",
    "crc32c_generic",
    "tcp_diag",  # ss -K, which resets connections
    "veth",
    "ib_uverbs",
    "rdma_rxe",
)


class ModuleMissingError(Exception):
    """The kernel has no such module, not even built in."""


def load_order(root: Path, wanted: Sequence[str] = WANTED) -> dict[str, bytes]:
    """Reads the wanted modules and all that they depend on.

    Args:
        root: lib/modules/VERSION of a kernel's package.
        wanted: names.

    Returns:
        name -> the module's content, each after those it depends on.

    Raises:
        ModuleMissingError: one of them is neither a file nor built into the kernel.
    """
    files = {_name_of(path.name): path for path in root.rglob("*.ko*")}
    built_in = {_name_of(Path(line).name) for line in (root / "modules.builtin").read_text().splitlines()}
    loaded: dict[str, bytes] = {}
    for name in wanted:
        _add(name, files, built_in, loaded)
    return loaded


def _add(name: str, files: dict[str, Path], built_in: set[str], loaded: dict[str, bytes]) -> None:
    if name in loaded or name in built_in:
        return
    if name not in files:
        raise ModuleMissingError(f"kernel module {name}: neither a file of the kernel's package nor built in")
    content = _read(files[name])
    for needed in depends_of(content):
        _add(needed, files, built_in, loaded)
    loaded[name] = content


def depends_of(content: bytes) -> Iterator[str]:
    """Names of the modules that a module, by what it says itself, must be loaded after."""
    found = re.search(rb"(?<![^\0])depends=([^\0]*)\0", content)
    return (_name_of(name) for name in found[1].decode().split(",") if name) if found else iter(())


def _name_of(file_name: str) -> str:
    """File names and the kernel do not agree on hyphens."""
    return file_name.partition(".")[0].replace("-", "_")


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content
