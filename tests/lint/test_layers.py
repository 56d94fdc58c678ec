"""Folders are layers: what may include or import what, and proof that nothing else does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# csrc/<folder> -> the other folders whose headers it may include. Change it in a commit of its own,
# with the reason.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "device": {"base"},
    "kernels": {"base"},
    "transport": {"base"},
    "codec": {"base", "kernels"},
    "protocol": {"base"},
    "cluster": {"base", "transport", "protocol"},
    "summation": {"base", "kernels", "codec", "transport", "protocol"},
    "worker": {"base", "kernels", "codec", "device", "transport", "protocol", "cluster"},
    "node": {"base", "kernels", "codec", "device", "transport", "protocol", "cluster", "summation", "worker"},
    "sim": {"base", "transport", "protocol", "cluster", "worker", "node", "elastic"},
}
LAYERS["elastic"] = {*LAYERS["node"], "node"}
LAYERS["c_api"] = {*LAYERS["elastic"], "elastic"}
LAYERS["bindings"] = {*LAYERS["c_api"], "c_api", "sim"}
# Own libraries, which include only c_api.h of c_api.
LAYERS["tensorflow"] = LAYERS["mxnet"] = {"c_api"}

ADAPTERS = ("torch", "tensorflow", "keras", "mxnet")
FRAMEWORKS = {*ADAPTERS, "jax"}
TORCH_PLUGIN = "torch_plugin"  # PyTorch imports it before the adapter
# Files that may import another adapter: Keras runs on several frameworks, and TensorFlow has names
# for what is Keras's.
MEETING_PLACES: dict[str, set[str]] = {
    "byteps/keras/on_tensorflow.py": {"byteps.tensorflow"},
    "byteps/keras/on_torch.py": {"byteps.torch"},
    "byteps/tensorflow/optimizer.py": {"byteps.keras"},
    "byteps/tensorflow/keras/": {"byteps.keras"},
}
ENVIRONMENT_READER = "byteps/config.py"

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)


def csrc_files() -> list[Path]:
    return sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cc"})


def python_files() -> list[Path]:
    return sorted([*(ROOT / "byteps").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")])


def module_of(path: Path) -> str:
    """The dotted name that a file is installed under."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("byteps", *parts) if parts[0] == "launcher" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Returns the dotted names of all imports in the file, with relative ones made absolute."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def test_every_folder_of_csrc_is_a_layer() -> None:
    assert {path.relative_to(ROOT / "csrc").parts[0] for path in csrc_files()} <= set(LAYERS)


def test_layers_have_no_cycle() -> None:
    TopologicalSorter(LAYERS).prepare()  # raises CycleError


def test_includes_point_only_to_lower_layers() -> None:
    wrong = []
    for path in csrc_files():
        layer = path.relative_to(ROOT / "csrc").parts[0]
        for quote, target in INCLUDE.findall(path.read_text()):
            if quote != '"':
                continue
            if not (ROOT / "csrc" / target).exists():
                wrong.append(f'{path.relative_to(ROOT)}: "{target}" is not rooted at csrc/')
            elif target.split("/")[0] not in {layer, *LAYERS[layer]}:
                wrong.append(f'{path.relative_to(ROOT)}: {layer}/ may not include "{target}"')
    assert not wrong, "\n".join(wrong)


def test_only_bindings_know_python() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in csrc_files()
        if "bindings" not in path.parts
        for _, target in INCLUDE.findall(path.read_text())
        if target == "Python.h" or target.startswith("pybind11/")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_import_no_other_adapter(adapter: str) -> None:
    others = {f"byteps.{other}" for other in ADAPTERS if other != adapter}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "byteps" / adapter).rglob("*.py")
        for name in imports_of(path)
        for other in others - meeting_places(path.relative_to(ROOT).as_posix())
        if name == other or name.startswith(f"{other}.")
    ]
    assert not wrong, "\n".join(wrong)


def meeting_places(path: str) -> set[str]:
    """The adapters that a file of another one may import: Keras stands on those of its backends."""
    return next((allowed for place, allowed in MEETING_PLACES.items() if path.startswith(place)), set())


def test_the_neutral_part_imports_no_framework_and_no_adapter() -> None:
    forbidden = FRAMEWORKS | {f"byteps.{adapter}" for adapter in ADAPTERS}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        if not any(part in path.relative_to(ROOT).parts for part in (*ADAPTERS, TORCH_PLUGIN))
        for name in imports_of(path)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_torch_loads_by_itself_imports_no_framework_and_no_adapter_at_once() -> None:
    """`import torch` runs it, so it must not import the adapter."""
    program = (
        "import sys, byteps.torch_plugin.hugging_face, byteps.torch_plugin.rendezvous;"
        "print([name for name in sys.modules if name.startswith(('torch', 'byteps.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name.startswith("byteps.torch_plugin") for name in ast.literal_eval(done.stdout)), done.stdout


def test_launcher_imports_only_the_configuration() -> None:
    allowed = ("byteps.config", "byteps.detect", "byteps.errors", "byteps.launcher", "byteps.version")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "launcher").rglob("*.py")
        for name in imports_of(path)
        if name.startswith("byteps.") and not name.startswith(allowed)
    ]
    assert not wrong, "\n".join(wrong)


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        return node.attr in {"environ", "environb", "getenv"}
    return isinstance(node, ast.ImportFrom) and node.module == "os" and bool(
        {alias.name for alias in node.names} & {"environ", "environb", "getenv"}
    )  # fmt: skip


def test_one_python_file_touches_the_environment() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in python_files()
        if path.relative_to(ROOT).as_posix() != ENVIRONMENT_READER
        for node in ast.walk(ast.parse(path.read_text()))
        if reads_environment(node)
    ]
    assert not wrong, f"os.environ outside {ENVIRONMENT_READER}:\n" + "\n".join(wrong)
