"""Prefixed lines and progress bars, on files and on terminals."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest
from byteps.launcher.output import Console, Stream


class Screen:
    """A console whose output can be read back."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self.console = Console(writer, writer)

    def text(self) -> str:
        """Returns the output since the last call."""
        os.write(self._writer, b"\0")  # a terminal hands on what was written when it gets to it
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(self._reader, 1 << 20)
        return text[:-1].decode().replace("\r\n", "\n")


@pytest.fixture
def file() -> Iterator[Screen]:
    ends = os.pipe()
    fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 1 << 18)  # nobody reads while a test writes
    yield from screen(ends)


@pytest.fixture
def terminal() -> Iterator[Screen]:
    yield from screen(os.openpty())


def screen(ends: tuple[int, int]) -> Iterator[Screen]:
    yield Screen(*ends)
    for fd in ends:
        os.close(fd)


@pytest.fixture
def stream_on() -> Iterator[Callable[[Screen], tuple[Stream, BinaryIO]]]:
    writers: list[BinaryIO] = []

    def make(screen: Screen) -> tuple[Stream, BinaryIO]:
        reader, writer = os.pipe()
        writers.append(os.fdopen(writer, "wb", buffering=0))
        pipe = os.fdopen(reader, "rb", buffering=0)
        stream = Stream(pipe, screen.console, screen.console.stdout, b"[r0] ", lambda _: None)
        return stream, writers[-1]

    yield make
    for writer in writers:
        writer.close()


Maker = Callable[[Screen], tuple[Stream, BinaryIO]]


def test_only_whole_lines_are_written(file: Screen, stream_on: Maker) -> None:
    stream, process = stream_on(file)
    process.write(b"one\ntw")
    stream.read()
    assert file.text() == "[r0] one\n"
    process.write(b"o\r\n")
    stream.read()
    assert file.text() == "[r0] two\n"


def test_the_last_line_may_lack_its_end(file: Screen, stream_on: Maker) -> None:
    stream, process = stream_on(file)
    process.write(b"half")
    stream.finish()
    assert file.text() == "[r0] half\n"


def test_a_line_without_end_is_cut(file: Screen, stream_on: Maker) -> None:
    stream, process = stream_on(file)
    text = ""
    for _ in range(4):
        process.write(b"x" * 32768)
        stream.read()
        text += file.text()
    assert text == "[r0] " + "x" * 98304 + "\n"


def test_reading_tells_nothing_from_the_end(file: Screen, stream_on: Maker) -> None:
    stream, process = stream_on(file)
    assert stream.read() is None
    process.close()
    assert stream.read() == 0


def test_a_file_gets_the_last_state_of_a_bar(file: Screen, stream_on: Maker) -> None:
    stream, process = stream_on(file)
    for percent in (10, 50, 100):
        process.write(b"\r%d%%" % percent)
        stream.read()
    assert file.text() == ""
    process.write(b"\nloss 0.1\n")
    stream.read()
    assert file.text() == "[r0] 100%\n[r0] loss 0.1\n"


def test_a_terminal_keeps_the_bar_below_the_lines(terminal: Screen, stream_on: Maker) -> None:
    bar, bar_process = stream_on(terminal)
    other, other_process = stream_on(terminal)
    bar_process.write(b"\r10%")
    bar.read()
    assert terminal.text().endswith("\r\x1b[K[r0] 10%")
    other_process.write(b"loss 0.1\n")
    other.read()
    assert terminal.text() == "\r\x1b[K[r0] loss 0.1\n[r0] 10%"
    bar_process.write(b"\r100%\n")
    bar.read()
    assert terminal.text().endswith("[r0] 100%\n")
    other_process.write(b"done\n")
    other.read()
    assert terminal.text() == "[r0] done\n"


def test_colours_are_for_terminals(file: Screen, terminal: Screen) -> None:
    assert file.console.prefix(file.console.stdout, "r1", 1) == b"[r1] "
    assert b"\x1b[" in terminal.console.prefix(terminal.console.stdout, "r1", 1)
