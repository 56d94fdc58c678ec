"""Builds the native module byteps/_core with CMake. All metadata is in pyproject.toml.

CMAKE_ARGS in the environment: more of CMake's arguments, such as "-DOPENSSL_ROOT_DIR=/opt/ssl".
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    def run(self) -> None:
        # CMake writes the module where it belongs, in place or not: nothing of setuptools' own compiling and copying.
        for ext in self.extensions:
            self.build_extension(ext)

    def build_extension(self, ext: Extension) -> None:
        # An editable install shares the directory of the preset "release", so that `cmake --build build/release`
        # renews the module that Python imports. A wheel is built in a directory of its own.
        build_dir = ROOT / "build" / "release" if self.inplace else Path(self.build_temp).resolve()
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_COMPILE_WARNING_AS_ERROR": "OFF",
            "CMAKE_MAKE_PROGRAM": shutil.which("ninja") or "ninja",
            "BYTEPS_BUILD_PYTHON": "ON",
            "BYTEPS_BUILD_TESTS": "OFF",
            "BYTEPS_BUILD_BENCHMARKS": "OFF",
            "BYTEPS_MODULE_DIR": Path(self.get_ext_fullpath(ext.name)).resolve().parent,
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        defines = [f"-D{name}={value}" for name, value in settings.items()]
        defines += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        subprocess.check_call(["cmake", "-S", ROOT, "-B", build_dir, "-G", "Ninja", *defines])
        subprocess.check_call(["cmake", "--build", build_dir, "--target", "_core", "tensorflow_ops", "mxnet_engine"])


class EditableWheel(editable_wheel):
    """An editable install that a script in the folder above the clone finds, too.

    There `import byteps` would make a namespace of the clone's folder: setuptools' finder comes after Python's own.
    With the clone in sys.path Python's finder sees the package, which goes before a namespace.
    """

    def _select_strategy(self, *about: object) -> "WithClone":
        return WithClone(super()._select_strategy(*about))


class WithClone:
    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __enter__(self) -> "WithClone":
        self._strategy.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._strategy.__exit__(*error)

    def __call__(self, wheel: Any, files: list[str], mapping: dict[str, str]) -> None:
        self._strategy(wheel, files, mapping)
        wheel.writestr("__editable__.byteps_clone.pth", f"{ROOT}\n".encode())


setup(
    packages=[*find_packages(include=["byteps", "byteps.*"]), "byteps.launcher"],
    ext_modules=[Extension("byteps._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "editable_wheel": EditableWheel},
)
