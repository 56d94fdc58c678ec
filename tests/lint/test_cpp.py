"""Checks of the C++ sources by compilers: headers compile alone, lock annotations hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

pytestmark = pytest.mark.timeout(600)

INCLUDES = [f"-I{CSRC}", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]


def check_syntax(path: Path, flags: list[str]) -> str:
    """The compiler's complaints about one file, empty when there are none."""
    language = ["-x", "c++"]  # a header by itself is otherwise taken for a precompiled one
    command = [
        "clang++",
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags,
        *INCLUDES,
        *language,
        path,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def accept(paths: list[Path], flags: list[str]) -> None:
    assert shutil.which("clang++"), "clang++ is missing: tools/bootstrap.sh test-all installs it"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if found := "".join(pool.map(lambda path: check_syntax(path, flags), paths)):
            pytest.fail(found, pytrace=False)


def test_sources_include_their_own_header_first() -> None:
    """Proves by the build that these headers are self-contained."""
    wrong = []
    for source in CSRC.rglob("*.cc"):
        header = source.with_suffix(".h")
        includes = re.findall(r'#include ["<](.+)[">]', source.read_text())
        if header.exists() and includes[:1] != [header.relative_to(CSRC).as_posix()]:
            wrong.append(str(source.relative_to(ROOT)))
    assert not wrong, "\n".join(wrong)


def nameless_functions(source: Path) -> set[tuple[str, str]]:
    """Namespace and name of each function that only this file has."""
    text = source.read_text()
    namespace = re.search(r"^namespace (byteps[\w:]*) \{", text, re.MULTILINE)
    found = set()
    for body in re.findall(r"^namespace \{\n(.*?)^\}  // namespace\n", text, re.MULTILINE | re.DOTALL):
        found |= set(
            re.findall(r"^(?!return|using|//|TEST|INSTANTIATE)[\w:<>,&*][\w:<>,&* ]*?[ &*](\w+)\(", body, re.MULTILINE)
        )
    return {(namespace[1] if namespace else "", name) for name in found}


def test_nameless_functions_differ_by_name() -> None:
    """Compiled together (CMAKE_UNITY_BUILD), functions of two files would be overloads of each other."""
    apart = ("tensorflow", "kernels")  # compiled one by one
    sources = [s for s in CSRC.rglob("*.cc") if not set(apart) & set(s.parts)]
    files_of = defaultdict(list)
    for source in sources:
        for function in nameless_functions(source):
            files_of[function].append(source.relative_to(ROOT).as_posix())
    for source in (ROOT / "tests" / "cpp").rglob("*.cc"):  # a program for each folder
        for function in nameless_functions(source):
            files_of[(source.parent.name, *function)].append(source.relative_to(ROOT).as_posix())
    assert len(files_of) > 300
    shared = {"::".join(function): files for function, files in files_of.items() if len(files) > 1}
    assert not shared, "\n".join(f"{function}: {', '.join(files)}" for function, files in shared.items())


def test_headers_without_a_source_are_self_contained() -> None:
    # -inl.h files are bodies that several sources include on purpose, after their own settings.
    alone = [h for h in CSRC.rglob("*.h") if not h.with_suffix(".cc").exists() and not h.name.endswith("-inl.h")]
    accept(alone, ["-Wno-pragma-once-outside-header", "-Wno-unused-const-variable"])


def test_clang_accepts_what_it_does_not_build() -> None:
    """The preset asan-ubsan builds all else with it; there lock annotations are errors, too."""
    folders = ("bindings", "tensorflow", "kernels/portable")
    accept([source for folder in folders for source in sorted((CSRC / folder).glob("*.cc"))], ["-Wthread-safety"])
