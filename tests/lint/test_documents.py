"""Documents name what exists: files, folders, symbols, targets of make; and their lines are short."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from byteps.launcher.options import parse_options

ROOT = Path(__file__).resolve().parents[2]
MAX_COLUMNS = 100

SOURCES = (".py", ".pyi", ".cc", ".h", ".txt", ".toml", ".cmake", ".json", ".sh", "Makefile", "run")
# What is not in the tree: build outputs, and folders of the system and of other programs.
NOT_TRACKED = re.compile(r"^(/|~|\$|\.venv|build/|dist/|benchmarks/results|byteps/_core|byteps/\w+/_\w+\.so|DMLC_)")
# Settings of other programs, and other names of theirs that documents mention and no source here does.
FOREIGN_SETTINGS = re.compile(r"(TF|MXNET|TORCH|HOROVOD)_[A-Z_]+")
FOREIGN = {
    *("FSDP2", "num_replicas", "set_epoch", "drop_last"),  # PyTorch
    *("reduce_to", "merge_call", "CrossDeviceOps", "map_fn", "while_loop", "parallel_iterations"),  # TensorFlow
    "DeadlineExceededError",  # TensorFlow
    *("save_checkpoint", "SparseEmbedding"),  # MXNet
    *("LimitMEMLOCK", "tcp_slow_start_after_idle", "grpc_proxy", "benchmark_filter"),
    *("snake_case", "CamelCase"),
}


@cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@cache
def folders() -> set[str]:
    return {str(parent) for name in tracked() for parent in Path(name).parents}


@cache
def words_of_sources() -> set[str]:
    """Every identifier of every source, and the names of the files themselves."""
    words: set[str] = set()
    for name in tracked():
        words.update(re.findall(r"\w+", name))
        if name.endswith(SOURCES) and name != Path(__file__).relative_to(ROOT).as_posix():
            words.update(re.findall(r"\w+", (ROOT / name).read_text()))
    return words


# docs/env.md is generated.
DOCUMENTS = [name for name in tracked() if name.endswith(".md") and name != "docs/env.md"]
# docs/migration.md lists names of other projects; tests/frameworks/migration.py checks them.
WITH_SYMBOLS = [name for name in DOCUMENTS if name != "docs/migration.md"]


def lines_outside_of_code(document: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not in a fenced or indented block."""
    is_code = False
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield number, line


def code_spans(document: str) -> list[str]:
    text = "\n".join(line for _, line in lines_outside_of_code(document))
    return [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", text)]


def exists(path: str, document: str) -> bool:
    """Whether `path`, with or without its folders and its suffix, is a file or folder of the tree."""
    path = path.rstrip("/")
    if (ROOT / document).parent.joinpath(path).exists():
        return True
    pattern = re.escape(path).replace(r"\*", "[^/]*")
    whole = re.compile(rf"(.*/)?{pattern}(\.\w+)?")
    return any(whole.fullmatch(name) for name in [*tracked(), *folders()])


def is_path(span: str) -> bool:
    if not re.fullmatch(r"[\w.*+/-]+", span) or "//" in span or NOT_TRACKED.match(span):
        return False
    has_suffix = re.search(r"\.(py|pyi|cc|h|md|json|txt|toml|sh|svg|cmake)$", span)
    first = span.partition("/")[0]
    return bool(has_suffix) or ("/" in span and any(first == Path(folder).name for folder in folders()))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / document).read_text())
    wrong = [link for link in links if "://" not in link and not (ROOT / document).parent.joinpath(link).exists()]
    wrong += [span for span in code_spans(document) if is_path(span) and not exists(span, document)]
    assert not wrong, f"{document} names files that do not exist: {', '.join(wrong)}"


def test_links_to_sections_exist() -> None:
    wrong = []
    for document in DOCUMENTS:
        for link, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / document).read_text()):
            target = (ROOT / document).parent / link if link else ROOT / document
            titles = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            wrong += [f"{document}: {link}#{section}"] if section not in slugs else []
    assert not wrong, "\n".join(wrong)


def is_known(symbol: str) -> bool:
    return symbol in words_of_sources() or symbol in FOREIGN or bool(FOREIGN_SETTINGS.fullmatch(symbol))


@pytest.mark.parametrize("document", WITH_SYMBOLS)
def test_symbols_exist(document: str) -> None:
    """Types (CamelCase), functions, tests (snake_case), settings: each word of them is in some source."""
    wrong = []
    for span in code_spans(document):
        symbols = re.findall(r"\b(?:[A-Z][a-z]\w*[A-Z]\w*|[a-zA-Z]\w*_\w+|\w+(?=\(\)))", span)
        if not is_path(span) and not NOT_TRACKED.match(span):
            wrong += [f"{symbol} in `{span}`" for symbol in symbols if not is_known(symbol)]
    assert not wrong, f"{document} names what no source has:\n" + "\n".join(wrong)


def files_of_tables(document: str) -> Iterator[tuple[list[str], str]]:
    """Names in the first column of tables of files, with the folders that the heading above names."""
    here: list[str] = []
    for _, line in lines_outside_of_code(document):
        if line.startswith("#"):
            here = [span.rstrip("/") for span in re.findall(r"`([^`]+)/`", line)]
        elif line.startswith("| `") and here:
            for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
                yield here, name


def test_tables_of_files() -> None:
    """`message` below the heading "csrc/protocol/" is a file or folder of csrc/protocol."""
    document = "ARCHITECTURE.md"
    missing = []
    for here, name in files_of_tables(document):
        is_whole_path = "/" in name or "." in name
        places = [f"{folder}/{name}" for folder in here] + [name] * is_whole_path
        if not any(exists(place, document) for place in places):
            missing.append(f"`{name}` in {' or '.join(here)}")
    assert not missing, "\n".join(missing)


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    missing = []
    for document in DOCUMENTS:
        commands = re.findall(r"`make ([\w-]+)|^ *make ([\w-]+) +[#A-Z]", (ROOT / document).read_text(), re.MULTILINE)
        missing += [f"{document}: make {a or b}" for a, b in commands if (a or b) not in targets]
    assert not missing, "\n".join(missing)


def test_protocol_version_is_documented() -> None:
    header = (ROOT / "csrc" / "protocol" / "data_message.h").read_text()
    (version,) = re.findall(r"kProtocolVersion = (\d+);", header)
    page = (ROOT / "docs" / "wire-format.md").read_text()
    assert re.findall(r"^\| protocol \| .*? \| (\d+) \|", page, re.MULTILINE) == [version]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_parses(document: str) -> None:
    for block in blocks(document, "python"):
        ast.parse(block)


def test_example_of_readme_is_one_that_tests_run() -> None:
    (example,) = blocks("README.md", "python")
    calls = [line for line in example.splitlines() if "bps." in line]
    tested = (ROOT / "examples" / "torch" / "minimal.py").read_text().splitlines()
    assert calls and set(calls) <= set(tested)


def test_each_measure_runs_by_its_name_and_is_explained() -> None:
    folder = ROOT / "benchmarks" / "measures"
    measures = {path.stem for path in folder.glob("*.py") if re.search(r"^def run\(", path.read_text(), re.MULTILINE)}
    listed = re.findall(r'^    "(\w+)",$', (folder / "__init__.py").read_text(), re.MULTILINE)
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / "benchmarks" / "README.md").read_text(), re.MULTILINE)
    assert measures == set(listed) == set(explained)


def test_figures_of_readme_have_measures() -> None:
    measures = re.findall(r"\| `(\w+)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert measures and all((ROOT / "benchmarks" / "measures" / f"{name}.py").is_file() for name in measures)


def test_launch_commands_parse() -> None:
    for document in ("README.md", *(name for name in DOCUMENTS if name.startswith("docs/"))):
        for command in re.findall(r"^bpslaunch (.*)", "".join(blocks(document, "")).replace("\\\n", ""), re.MULTILINE):
            options = parse_options(shlex.split(command, comments=True))
            assert options.command[0] == "python", f"{document}: bpslaunch {command}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_are_short(document: str) -> None:
    """Prose only: tables and code may be wider."""
    long = [
        f"{document}:{number}: {len(line)} columns"
        for number, line in lines_outside_of_code(document)
        if len(line) > MAX_COLUMNS and " " in line.strip()[:MAX_COLUMNS] and not line.startswith("|")
    ]
    assert not long, "\n".join(long)


def test_overview_picture_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "draw_overview.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    drawn = (ROOT / "docs" / "overview.svg").read_text()
    assert drawn == done.stdout, "run: python tools/draw_overview.py > docs/overview.svg"
