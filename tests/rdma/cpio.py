"""Archives that Linux unpacks as its first file system: "newc" cpio.

Source: Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import PurePosixPath

FILE = stat.S_IFREG | 0o644
PROGRAM = stat.S_IFREG | 0o755
LINK = stat.S_IFLNK | 0o777
_FOLDER = stat.S_IFDIR | 0o755
_ALIGNMENT = 4  # alignment of names and contents
_BLOCK = 512  # alignment of archives: the kernel takes several


def archive(entries: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Packs path -> (mode, content), and the folders of the paths.

    All is root's; a link's content is its target.
    """
    folders = {str(folder) for path in entries for folder in PurePosixPath(path).parents if folder.name}
    everything = dict.fromkeys(sorted(folders), (_FOLDER, b"")) | dict(entries)
    packed = [_member(number, path, *entry) for number, (path, entry) in enumerate(everything.items(), 1)]
    return _padded(b"".join([*packed, _member(0, "TRAILER!!!", 0, b"")]), _BLOCK)


def _member(number: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    owner = device = (0, 0)
    fields = (number, mode, *owner, 1, 0, len(content), *device, *device, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(head + name, _ALIGNMENT) + _padded(content, _ALIGNMENT)


def _padded(data: bytes, unit: int) -> bytes:
    return data + bytes(-len(data) % unit)
