"""Makes `import mxnet` work with numpys that are newer than MXNet, whose last release (1.9.1) is of 2022.

MXNet reads names that numpy has removed since: some while it is imported, some only when its functions run. They are
set in numpy during the import and taken away again after it, as other libraries ask numpy what it has. For later, the
modules of MXNet see a numpy of their own: a copy of numpy's names (so what is replaced in the module `numpy` after
the import is not seen by MXNet), and the removed ones. No name that numpy has is ever changed.

What a newer numpy does otherwise with arrays stays its own affair: since 2.0 it refuses numbers that a dtype cannot
hold (`mx.nd.array([300], dtype="uint8")`), and since 2.4 `float(array)` unless the array has no dimension (so
`loss.asscalar()`, not `float(loss.asnumpy())`).
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

_WORKING_NUMPY = "numpy>=1.23,<2.5"  # tested; a newer one is tried all the same


def import_mxnet() -> ModuleType:
    """The module `mxnet`, imported if it was not. To be called before anything else imports MXNet.

    If it has been imported already, neither numpy nor MXNet is touched.

    Raises:
        ImportError: MXNet or a package that it needs is not installed.
        UnsupportedError: MXNet cannot be imported with this numpy, or is another release than 1.9.
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
        _write_numbers_as_before()
    if not hasattr(np.ndarray, "tostring"):
        _call_tobytes()
    return mxnet


def _of_the_right_release(mxnet: ModuleType) -> ModuleType:
    release = str(getattr(mxnet, "__version__", "of unknown release"))
    if not release.startswith("1.9."):
        raise UnsupportedError(f"byteps.mxnet works with MXNet 1.9.1, but this is {_found(release)}. {_remedy()}")
    return mxnet


def _import_with(removed: dict[str, Any]) -> ModuleType:
    for name in _modules_of_mxnet():  # left by an import that failed, as the user's does without the names
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
        warnings.simplefilter("ignore")  # numpy 1.23 to 2.3 warn when a name that will go is looked up
        return hasattr(np, name)


def _give_mxnet_its_own_numpy(removed: dict[str, Any]) -> None:
    own = ModuleType("numpy", np.__doc__)
    vars(own).update(vars(np))  # with numpy's __getattr__, which imports submodules when they are asked for
    vars(own).update(removed)
    for module in _modules_of_mxnet().values():
        for name, value in list(vars(module).items()):
            if value is np:
                setattr(module, name, own)


def _write_numbers_as_before() -> None:
    """Parameters of operators go to MXNet's library as text, in which numpy's numbers must be plain numbers.

    Since numpy 2 the text of a tuple or list is "(np.int64(3), 4)", where it was "(3, 4)". For instance
    `shape=(np.int64(3), 4)`, or the list of learning rates, if a schedule computed them with numpy.
    """
    for name in ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol", "mxnet.symbol.symbol", "mxnet.io.io"):
        vars(sys.modules[name])["str"] = _text  # in these modules `str` is only ever called


def _text(value: Any) -> str:
    text = str(value)
    if "np." in text and not isinstance(value, str):
        with np.printoptions(legacy="1.25"):
            return str(value)
    return text


def _call_tobytes() -> None:
    """In place of arrays' method `tostring`, which numpy 2.3 removed, where MXNet calls it."""
    recordio = sys.modules["mxnet.recordio"]
    for function in (recordio.pack, recordio.pack_img):
        names = function.__code__.co_names
        now = tuple("tobytes" if name == "tostring" else name for name in names)
        function.__code__ = function.__code__.replace(co_names=now)


def _modules_of_mxnet() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mxnet"}


def _removed_names() -> dict[str, Any]:
    """What MXNet 1.9 reads of numpy and newer releases lack, with the meaning that numpy gave it."""
    return {
        # Gone since numpy 1.24: Python's types. MXNet reads `bool` at its import, `int` in mxnet.test_utils.
        # numpy 2 has a `bool` again, which is its own type, and MXNet takes either.
        "bool": bool,
        "int": int,
        # Gone since numpy 2.0: constants by other names, which mxnet.numpy exports or defaults to.
        "Inf": np.inf,
        "NAN": np.nan,
        "NINF": -np.inf,
        "NZERO": -0.0,
        "NaN": np.nan,
        "PINF": np.inf,
        "PZERO": 0.0,
        # Gone since numpy 2.0 (in1d and trapz: 2.4): functions by other names, which mxnet.numpy exports. They are
        # functions of their own, as MXNet says by function what it does with its own arrays.
        "alltrue": _renamed_to("all"),
        "in1d": lambda *args, **kwargs: np.ravel(np.isin(*args, **kwargs)),
        "msort": lambda a: np.sort(a, axis=0),
        "product": _renamed_to("prod"),
        "round_": _renamed_to("round"),
        "sometrue": _renamed_to("any"),
        "trapz": _renamed_to("trapezoid"),
        # Gone since numpy 1.20, but left as functions that raise, until 2.0. mxnet.numpy exports them all the same.
        **{name: _financial(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
        # Gone since numpy 2.0: a module. mxnet.numpy.pad asks it for the base of strings.
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
    needs = "requests graphviz" + (" setuptools" if sys.version_info >= (3, 12) else "")  # for its module distutils
    return (
        "To install a pair that works:\n"
        f'  pip install "{_WORKING_NUMPY}" {needs}\n'
        "  pip install --no-deps mxnet==1.9.1\n"
        "(--no-deps, as MXNet asks for a numpy older than 2, which it does not need with byteps.)"
    )
