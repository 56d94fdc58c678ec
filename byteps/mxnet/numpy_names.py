"""Makes `import mxnet` work with current releases of numpy. MXNet's last release is 1.9.1, of 2022.

MXNet uses names that numpy has removed, some during its import, some when its functions run. This
module adds them to numpy during the import and removes them afterwards, since other libraries check
which names numpy has. After the import, the modules of MXNet see a copy of the module numpy with
the removed names added, so they do not see later changes of the module `numpy`. No name that numpy
has is changed.

Other changes of numpy remain visible: numpy 2.0 and newer refuse numbers that a dtype cannot hold
(`mx.nd.array([300], dtype="uint8")`), and 2.4 and newer refuse `float(array)` unless the array has
no dimension: use `loss.asscalar()`, not `float(loss.asnumpy())`.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from byteps.errors import UnsupportedError

__all__ = ["import_mxnet"]

_WORKING_NUMPY = "numpy>=1.23,<2.5"  # tested; newer releases are not refused


def import_mxnet() -> ModuleType:
    """Imports and returns the module `mxnet`. Call it before any other import of MXNet.

    If MXNet has been imported already, changes neither numpy nor MXNet.

    Raises:
        ImportError: MXNet or a package that it needs is not installed.
        UnsupportedError: MXNet cannot be imported with this numpy, or is not of release 1.9.
    """
    if sys.modules.get("mxnet") is not None:
        return _of_the_right_release(sys.modules["mxnet"])
    if importlib.util.find_spec("mxnet") is None:
        raise ModuleNotFoundError(f"byteps.mxnet needs MXNet 1.9.1, which is not installed. {_remedy()}", name="mxnet")
    removed = {name: value for name, value in _removed_names().items() if not _numpy_has(name)}
    mxnet = _of_the_right_release(_import_with(removed))
    if removed:
        _give_mxnet_its_own_numpy(removed)
    if int(np.__version__.split(".")[0]) >= 2:
        _write_plain_numbers()
    if not hasattr(np.ndarray, "tostring"):
        _call_tobytes()
    return mxnet


def _of_the_right_release(mxnet: ModuleType) -> ModuleType:
    release = str(getattr(mxnet, "__version__", "of unknown release"))
    if not release.startswith("1.9."):
        raise UnsupportedError(f"byteps.mxnet works with MXNet 1.9.1, but this is {_found(release)}. {_remedy()}")
    return mxnet


def _import_with(removed: dict[str, Any]) -> ModuleType:
    for name in _modules_of_mxnet():  # left by a failed import of the user's
        del sys.modules[name]
    vars(np).update(removed)
    try:
        return importlib.import_module("mxnet")
    except Exception as error:
        release = getattr(sys.modules.get("mxnet.libinfo"), "__version__", "of unknown release")
        message = f"{_found(release)} cannot be imported: {type(error).__name__}: {error}. {_remedy()}"
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("numpy"):
            raise ModuleNotFoundError(message, name=error.name) from error
        raise UnsupportedError(message) from error
    finally:
        for name in removed:
            vars(np).pop(name, None)


def _numpy_has(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 1.23 to 2.3 warn of deprecated names
        return hasattr(np, name)


def _give_mxnet_its_own_numpy(removed: dict[str, Any]) -> None:
    own = ModuleType("numpy", np.__doc__)
    vars(own).update(vars(np))  # includes __getattr__, which imports submodules
    vars(own).update(removed)
    for module in _modules_of_mxnet().values():
        for name, value in list(vars(module).items()):
            if value is np:
                setattr(module, name, own)


def _write_plain_numbers() -> None:
    """Makes MXNet write numpy's numbers in operator parameters as plain numbers.

    Parameters go to MXNet's library as text. With numpy 2 the text of `shape=(np.int64(3), 4)` is
    "(np.int64(3), 4)" and not "(3, 4)"; likewise the list of learning rates that a schedule
    computed.
    """
    for name in ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol", "mxnet.symbol.symbol", "mxnet.io.io"):
        vars(sys.modules[name])["str"] = _text  # these modules only call `str`


def _text(value: Any) -> str:
    text = str(value)
    if "np." in text and not isinstance(value, str):
        with np.printoptions(legacy="1.25"):
            return str(value)
    return text


def _call_tobytes() -> None:
    """Makes MXNet call `tobytes` of arrays instead of `tostring`, which numpy 2.3 removed."""
    recordio = sys.modules["mxnet.recordio"]
    for function in (recordio.pack, recordio.pack_img):
        names = function.__code__.co_names
        now = tuple("tobytes" if name == "tostring" else name for name in names)
        function.__code__ = function.__code__.replace(co_names=now)


def _modules_of_mxnet() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mxnet"}


def _removed_names() -> dict[str, Any]:
    """Returns the names that MXNet 1.9 uses and newer numpys lack, with their former values."""
    return {
        # Removed in numpy 1.24: Python's types. MXNet uses `bool` at its import, `int` in
        # mxnet.test_utils. MXNet accepts the new type `bool` of numpy 2 as well.
        "bool": bool,
        "int": int,
        # Removed in numpy 2.0: aliases of constants, which mxnet.numpy exports or uses as defaults.
        "Inf": np.inf,
        "NAN": np.nan,
        "NINF": -np.inf,
        "NZERO": -0.0,
        "NaN": np.nan,
        "PINF": np.inf,
        "PZERO": 0.0,
        # Removed in numpy 2.0 (in1d and trapz: 2.4): renamed functions, which mxnet.numpy exports.
        # Each must be a distinct function, since MXNet registers its own version for each.
        "alltrue": _renamed_to("all"),
        "in1d": lambda *args, **kwargs: np.ravel(np.isin(*args, **kwargs)),
        "msort": lambda a: np.sort(a, axis=0),
        "product": _renamed_to("prod"),
        "round_": _renamed_to("round"),
        "sometrue": _renamed_to("any"),
        "trapz": _renamed_to("trapezoid"),
        # Removed in numpy 1.20, replaced by functions that raise until 2.0. mxnet.numpy exports
        # them.
        **{name: _financial(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
        # Removed in numpy 2.0: a module. mxnet.numpy.pad uses its base class of strings.
        "compat": SimpleNamespace(basestring=str),
    }


def _renamed_to(name: str) -> Callable[..., Any]:
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return getattr(np, name)(*args, **kwargs)

    return renamed


def _financial(name: str) -> Callable[..., Any]:
    def moved(*_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedError(f"numpy has no {name} since 1.20. The package numpy_financial has it")

    return moved


def _found(release: str) -> str:
    return f"MXNet {release} (with numpy {np.__version__} and Python {platform.python_version()})"


def _remedy() -> str:
    # setuptools has the module distutils.
    needs = "requests graphviz" + (" setuptools" if sys.version_info >= (3, 12) else "")
    return (
        "To install a pair that works:\n"
        f'  pip install "{_WORKING_NUMPY}" {needs}\n'
        "  pip install --no-deps mxnet==1.9.1\n"
        "(--no-deps: MXNet requires numpy<2, which is not necessary with byteps.)"
    )
