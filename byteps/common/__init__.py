"""`BytePSBasics` of the original BytePS, for programs that use it directly."""

from __future__ import annotations

import importlib.util
import sysconfig

from byteps import runtime

__all__ = ["BytePSBasics", "check_extension", "get_ext_suffix"]


class BytePSBasics:
    """Functions of `byteps` as methods. All instances refer to the job of the process."""

    init = staticmethod(runtime.init)
    shutdown = staticmethod(runtime.shutdown)
    suspend = staticmethod(runtime.suspend)
    resume = staticmethod(runtime.resume)
    size = staticmethod(runtime.size)
    local_size = staticmethod(runtime.local_size)
    rank = staticmethod(runtime.rank)
    local_rank = staticmethod(runtime.local_rank)
    get_pushpull_speed = staticmethod(runtime.get_pushpull_speed)

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """Args: accepted for scripts of BytePS, unused."""


def get_ext_suffix() -> str:
    """Returns the suffix of extension modules, such as ".cpython-311-x86_64-linux-gnu.so"."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError if byteps is not built. The arguments are not used."""
    if importlib.util.find_spec("byteps._core") is None:
        raise ImportError(f"{ext_name}: byteps's native module is missing: install byteps again (pip install .)")
