"""Which workers are started where, as a user's program names machines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from byteps.launcher.child import Command
from byteps.launcher.discovery import FIRST_PAUSE_S, PERIOD_S, Discovery, HostScript, parse_hosts, remote_command

from byteps.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", {}),
        ("a\nb:4\n", {"a": 2, "b": 4}),
        ("  a # the first one\n\n# none\n10.0.0.7:1", {"a": 2, "10.0.0.7": 1}),
        ("a:1\na:3\n", {"a": 3}),
    ],
)
def test_hosts_are_lines(text: str, hosts: dict[str, int]) -> None:
    assert parse_hosts(text, 2) == hosts


@pytest.mark.parametrize("line", ["a:0", "a:x", ":3", "a b", "-oProxyCommand=x", "fe80::1", "a:-1"])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected HOST or HOST:SLOTS"):
        parse_hosts(f"good\n{line}\n", 1)


def script(folder: Path, text: str) -> list[str]:
    path = folder / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


def outcome_of(run: HostScript, now: float = 0.0) -> dict[str, int]:
    assert run.step(now) is None  # starts it
    deadline = time.monotonic() + 30
    while (hosts := run.step(now)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return hosts


def test_the_script_runs_each_second_and_is_not_waited_for(tmp_path: Path) -> None:
    run = HostScript(script(tmp_path, "echo a; echo b:3"), 1)
    assert run.next_at() < 0
    assert outcome_of(run) == {"a": 1, "b": 3}
    assert run.next_at() == PERIOD_S
    assert run.step(PERIOD_S / 2) is None
    assert run.next_at() == PERIOD_S, "nothing runs"
    assert outcome_of(run, PERIOD_S) == {"a": 1, "b": 3}
    run.close()


def test_a_script_that_hangs_is_killed(tmp_path: Path) -> None:
    run = HostScript(script(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 1000"), 1)
    assert run.step(0) is None
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert run.step(1) is None
        time.sleep(0.01)
    with pytest.raises(InvalidArgumentError, match="has run for 60 s, and was killed"):
        run.step(61)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_script_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"hosts\.sh ended with code 3"):
        outcome_of(HostScript(script(tmp_path, "echo a; exit 3"), 1))
    with pytest.raises(InvalidArgumentError, match="cannot run /nowhere: No such file"):
        HostScript(["/nowhere"], 1).step(0)


class Played:
    """A script whose outputs the test gives."""

    def __init__(self) -> None:
        self.next: dict[str, int] | InvalidArgumentError | None = None
        self.said: list[str] = []
        self.started: list[tuple[str, int, int]] = []
        self.discovery = Discovery(self, self.command, self.said.append, max_failures=1)  # type: ignore[arg-type]

    def step(self, now: float) -> dict[str, int] | None:
        if isinstance(self.next, InvalidArgumentError):
            raise self.next
        return self.next

    def next_at(self) -> float:
        return 1000.0

    def close(self) -> None: ...

    def command(self, host: str, slots: int, number: int) -> Command:
        self.started.append((host, slots, number))
        return Command(label=host, argv=[], env={})

    def expect(self, now: float, starts: list[str], ends: list[str]) -> None:
        commands, leavers = self.discovery.step(now)
        assert ([command.label for command in commands], leavers) == (starts, ends)


@pytest.fixture
def played() -> Played:
    return Played()


def test_hosts_come_and_go(played: Played) -> None:
    played.expect(0, [], [])
    played.next = {"a": 2, "b": 1}
    played.expect(1, ["a", "b"], [])
    played.expect(2, [], [])
    played.next = {"b": 1, "c": 1}
    played.expect(3, ["c"], ["a"])
    played.discovery.on_end("a", 143, 4)
    played.expect(5, [], [])
    played.next = {"a": 2, "b": 1, "c": 1}
    played.expect(6, ["a"], [])
    assert played.started == [("a", 2, 1), ("b", 1, 2), ("c", 1, 3), ("a", 2, 1)]
    assert played.said == []


def test_another_number_of_slots_restarts_a_host(played: Played) -> None:
    played.next = {"a": 2}
    played.expect(0, ["a"], [])
    played.next = {"a": 3}
    played.expect(1, [], ["a"])
    played.discovery.on_end("a", 143, 2)
    played.expect(2, ["a"], [])
    assert played.started == [("a", 2, 1), ("a", 3, 1)]


def test_a_host_that_fails_is_tried_again_later_and_not_for_ever(played: Played) -> None:
    played.next = {"a": 1}
    played.expect(0, ["a"], [])
    played.discovery.on_end("a", 255, 0)
    played.expect(1, [], [])
    assert played.discovery.next_at(1) == 2 * FIRST_PAUSE_S
    played.expect(2 * FIRST_PAUSE_S, ["a"], [])
    played.discovery.on_end("a", 255, 10)
    played.expect(1000, [], [])
    assert played.said == ["a: tries again in 4 s", "a: its workers have failed 2 times; it is not used any more"]


def test_a_list_that_cannot_be_read_changes_nothing_and_is_said_once(played: Played) -> None:
    played.next = {"a": 1}
    played.expect(0, ["a"], [])
    played.next = InvalidArgumentError("hosts.sh ended with code 1")
    played.expect(1, [], [])
    played.expect(2, [], [])
    assert played.said == ["--host-discovery-script: hosts.sh ended with code 1; the hosts stay as they are"]


def test_the_command_of_another_machine_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"BYTEPS_SECRET": "s3cret", "BYTEPS_TIMEOUT_S": "3 4", "PATH": os.environ["PATH"], "OTHER": "x"}
    shell = ["ssh", "-p", "22"]
    argv = remote_command(shell, "b", ["--node-rank=1"], ["python", "a b.py"], environ)
    assert argv[:4] == ["ssh", "-p", "22", "b"]
    assert "s3cret" not in argv[4]
    assert "OTHER" not in argv[4]
    words = shlex.split(argv[4])
    assert words[:2] == ["cd", str(tmp_path)]
    assert "BYTEPS_TIMEOUT_S=3 4" in words
    assert words[-3:] == ["--", "python", "a b.py"]
    here = remote_command([], "localhost", [], ["python"], environ)
    assert here[0] == sys.executable


USAGE: list[tuple[list[str], str]] = [
    (["--host-discovery-script", sys.executable, "true"], "needs --master-addr"),
    (
        ["--host-discovery-script", sys.executable, "--master-addr", "h", "--nnodes", "2", "true"],
        "expected no --nnodes",
    ),
    (
        ["--host-discovery-script", sys.executable, "--master-addr", "h", "--node-rank", "0", "true"],
        "expected no --node-rank",
    ),
    (
        ["--host-discovery-script", sys.executable, "--master-addr", "h", "--nproc-per-node", "auto", "true"],
        "expected a number",
    ),
    (
        ["--host-discovery-script", "/nowhere", "--master-addr", "127.0.0.1", "true"],
        "expected a program that this user",
    ),
]


@pytest.mark.parametrize(("flags", "message"), USAGE)
def test_wrong_flags(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "byteps.launcher.launch", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
