"""pyverbs, the kernel's RDMA devices for Python programs, of Debian's package python3-pyverbs."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

_PACKAGE = Path("/usr/lib/python3/dist-packages/pyverbs")


class PyverbsError(Exception):
    """pyverbs is not installed."""


def why_no_pyverbs() -> str | None:
    """Debian builds it for its own release of Python only; None: that is this one's, too."""
    if not _PACKAGE.is_dir():
        raise PyverbsError(f"{_PACKAGE} is missing: tools/bootstrap.sh test-all installs python3-pyverbs")
    if (_PACKAGE / f"device{sysconfig.get_config_var('EXT_SUFFIX')}").exists():
        return None
    return f"Debian's pyverbs is not for Python {platform.python_version()}"


def pyverbs_path(folder: Path) -> Path:
    """Creates a folder for PYTHONPATH inside `folder` that has only pyverbs of Debian."""
    path = folder / "pyverbs-path"
    path.mkdir(exist_ok=True)
    link = path / "pyverbs"
    if not link.is_symlink():
        link.symlink_to(_PACKAGE)
    return path
