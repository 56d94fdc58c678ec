"""Groups of real processes: exit codes, signals, first failures, and complete clean-up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byteps.launcher.child import STDOUT, Command
from byteps.launcher.output import Console
from byteps.launcher.process import ProcessGroup

from byteps.errors import InvalidArgumentError

DEADLINE_S = 30.0

# Runs a process group: {"label": source of a Python program} and the seconds of grace, as JSON.
DRIVER = """
import json, os, sys
from pathlib import Path
from byteps.launcher.output import Console
from byteps.launcher.process import Command, GracePeriods, ProcessGroup
programs, grace, restarts = json.loads(sys.argv[1])
folder = Path("reports").absolute()
folder.mkdir()
commands = [
    Command(
        label=label,
        argv=[sys.executable, "-uc", source],
        env={**os.environ, "BYTEPS_ERROR_FILE": str(folder / label)},
        is_server=label.startswith("s"),
        may_be_lost=label.startswith("s"),
    )
    for label, source in programs.items()
]
sys.exit(ProcessGroup(commands, Console(), GracePeriods(**grace), folder, restarts).run())
"""

# What the programs below have in common: `here` leaves the process's number where the test finds
# it.
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
def report(cause, because_of=""):
    from byteps import ending
    ending.report(os.environ["BYTEPS_ERROR_FILE"], time.time(), cause, because_of)
def started():
    from byteps import config
    Path(os.environ["BYTEPS_ERROR_FILE"] + config.STARTED).touch()
def wait_for(name):
    while not Path(name + ".pid").exists(): time.sleep(0.01)
def here(name, pid=None):
    Path(name + ".new").write_text(str(pid or os.getpid()))
    Path(name + ".new").rename(name + ".pid")
"""
FOREVER = "here(NAME); time.sleep(1000)"
STUBBORN = "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGINT)]; here(NAME); time.sleep(1000)"


class Group:
    """A running driver."""

    def __init__(self, folder: Path, programs: dict[str, str], restarts: int = 0, **grace: float) -> None:
        sources = {label: f"{PRELUDE}\nNAME = {label!r}\n{source}" for label, source in programs.items()}
        grace = {"to_report": 0.2, "to_leave": 0.2, "to_interrupt": 0.2, "to_stop": 0.2} | grace
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps([sources, grace, restarts])],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err

    def pid(self, name: str) -> int:
        """The number that a program left with `here`."""
        path = self.folder / f"{name}.pid"
        wait_until(path.exists)
        return int(path.read_text())

    def clean_up(self) -> None:
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid")]
        for pid in filter(is_alive, [self.process.pid, *pids]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    groups: list[Group] = []

    def make(programs: dict[str, str], restarts: int = 0, **grace: float) -> Group:
        groups.append(Group(tmp_path, programs, restarts, **grace))
        return groups[-1]

    yield make
    for group in groups:
        group.clean_up()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Any) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s in vain"
        time.sleep(0.01)


def test_success_and_prefixed_output_on_both_streams(start: Any) -> None:
    code, out, err = start({"r0": "print('a')", "r1": "print('b', file=sys.stderr)"}).finish()
    assert (code, out, err) == (0, "[r0] a\n", "[r1] b\n")


def test_lines_of_different_processes_do_not_mix(start: Any) -> None:
    pieces = """
for _ in range(300):
    for part in (NAME, ' ', NAME * 30, '\\n'):
        sys.stdout.write(part)
        sys.stdout.flush()
"""
    _, out, _ = start({"r0": pieces, "r1": pieces, "r2": pieces}).finish()
    lines = out.splitlines()
    assert len(lines) == 900
    assert all(line == f"[{line[1:3]}] {line[1:3]} {line[1:3] * 30}" for line in lines)


def test_first_failure_stops_all_and_gives_the_exit_code(start: Any) -> None:
    group = start({"r0": FOREVER, "r1": "print('reason'); sys.exit(7)"})
    code, _, err = group.finish()
    assert code == 7
    assert "r1 (host " in err
    assert err.count("exited with code 7; its last line: reason\n") == 1
    assert not is_alive(group.pid("r0"))


def test_a_killed_process_is_128_and_its_signal(start: Any) -> None:
    code, _, err = start({"r0": FOREVER, "r1": "os.kill(os.getpid(), signal.SIGKILL)"}).finish()
    assert code == 137
    assert "was killed by SIGKILL\n" in err


def test_the_first_cause_is_told_with_its_exit_code_whoever_ends_first(start: Any) -> None:
    bystander = "wait_for('r1'); report('PeerLostError: x', 'rank 1 ended by KeyError: 1'); here(NAME); sys.exit(1)"
    guilty = "report('KeyError: 1'); print('Traceback'); here(NAME); wait_for('r0'); time.sleep(0.1); sys.exit(5)"
    code, out, err = start({"r0": bystander, "r1": guilty, "r2": FOREVER}).finish()
    assert code == 5
    assert out == "[r1] Traceback\n"
    assert ") exited with code 5: KeyError: 1\n" in err and "bpslaunch: r1 (host " in err
    assert "bpslaunch: after that failed: r0 (exited with code 1)\n" in err, "r2 was told to end"
    assert err.count("KeyError") == 1 and "Traceback" not in err


def test_the_job_goes_on_without_a_server_that_had_started(start: Any) -> None:
    rank = "wait_for('s0'); time.sleep(0.5); print('done')"
    code, out, err = start({"r0": rank, "s0": "started(); here(NAME); os.kill(os.getpid(), signal.SIGKILL)"}).finish()
    assert (code, out) == (0, "[r0] done\n"), err
    assert "bpslaunch: s0 (host " in err and "was killed by SIGKILL; the job may go on without it\n" in err


COUNTED = """
number = len(list(Path(".").glob("s0-*")))
Path(f"s0-{number}").touch()
"""


def test_a_lost_server_is_started_again_so_often_and_no_more(start: Any) -> None:
    rank = "wait_for('s0-last'); time.sleep(0.5); print('done')"
    server = f"{COUNTED}\nstarted()\nif number == 2: here('s0-last')\nos.kill(os.getpid(), signal.SIGKILL)"
    code, out, err = start({"r0": rank, "s0": server}, restarts=2).finish()
    assert (code, out) == (0, "[r0] done\n"), err
    assert err.count("was killed by SIGKILL; the job may go on without it") == 3
    assert [line for line in err.splitlines() if "again" in line] == [
        "bpslaunch: s0 starts again; restarts left: 1",
        "bpslaunch: s0 starts again; restarts left: 0",
    ]


def test_a_server_that_comes_again_too_late_is_no_failure(start: Any) -> None:
    rank = "wait_for('s0-last'); time.sleep(0.5); print('done')"
    server = f"{COUNTED}\nif number == 1: here('s0-last'); sys.exit(1)\nstarted(); sys.exit(1)"
    code, out, err = start({"r0": rank, "s0": server}, restarts=1).finish()
    assert (code, out) == (0, "[r0] done\n"), err


def test_a_server_that_ends_after_the_last_rank_is_not_started_again(start: Any) -> None:
    server = "started(); here(NAME); wait_for('r0'); time.sleep(0.5); sys.exit(1)"
    code, _, err = start({"r0": "wait_for('s0'); here(NAME)", "s0": server}, restarts=3, to_leave=5).finish()
    assert code == 0 and "again" not in err, err


def test_a_server_that_fails_before_the_start_stops_all(start: Any) -> None:
    code, _, err = start({"r0": FOREVER, "s0": "wait_for('r0'); sys.exit(9)"}).finish()
    assert code == 9
    assert "s0 (host " in err and "exited with code 9" in err


def test_a_rank_that_fails_later_is_the_cause_and_not_the_lost_server(start: Any) -> None:
    rank = "wait_for('s0'); time.sleep(0.5); report('KeyError: 1'); sys.exit(5)"
    code, _, err = start({"r0": rank, "s0": "started(); here(NAME); sys.exit(1)"}).finish()
    assert code == 5
    assert "bpslaunch: r0 (host " in err and "exited with code 5: KeyError: 1\n" in err
    assert "bpslaunch: after that failed: s0" in err


def test_a_lost_server_is_the_cause_if_ranks_say_so(start: Any) -> None:
    rank = "wait_for('s0'); time.sleep(0.5); report('PeerLostError: x', 'server 0 (host a, pid 9) ended'); sys.exit(1)"
    code, _, err = start({"r0": rank, "s0": "started(); here(NAME); sys.exit(4)"}).finish()
    assert code == 4
    assert "bpslaunch: s0 (host " in err


def test_a_cause_elsewhere_is_told_as_such(start: Any) -> None:
    bystander = "report('PeerLostError: x', 'rank 5 (host b, pid 9) ended by KeyError: 1'); sys.exit(3)"
    code, _, err = start({"r0": bystander, "r1": FOREVER}).finish()
    assert code == 3
    assert "exited with code 3, because of another process: rank 5 (host b, pid 9) ended by KeyError: 1\n" in err


def test_who_is_stopped_does_not_keep_a_job_that_is_over(start: Any) -> None:
    stopped = "here(NAME); os.kill(os.getpid(), signal.SIGSTOP)"
    group = start({"r0": "wait_for('r1')", "r1": stopped}, of_stopped=0.4)
    code, _, err = group.finish()
    assert code == 137
    assert "was killed by SIGKILL: it was stopped for 0 s after others had ended, so bpslaunch killed it\n" in err
    assert not is_alive(group.pid("r1"))


def test_who_is_stopped_is_not_waited_for_after_a_failure(start: Any) -> None:
    stopped = "here(NAME); os.kill(os.getpid(), signal.SIGSTOP)"
    group = start({"r0": "wait_for('r1'); time.sleep(0.2); sys.exit(4)", "r1": stopped}, to_report=1000, to_stop=1000)
    assert group.finish()[0] == 4


def test_files_for_the_output_are_opened_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    commands = [
        Command(label="r0", argv=["touch", str(tmp_path / "started")], env={}),
        Command(label="r1", argv=["true"], env={}, copies={STDOUT: tmp_path / "file" / "r1.log"}),
    ]
    with pytest.raises(InvalidArgumentError, match=r"--log-dir: cannot write .*r1.log: "):
        ProcessGroup(commands, Console()).run()
    assert not (tmp_path / "started").exists()


def test_a_launcher_that_is_killed_at_once_leaves_nothing(tmp_path: Path) -> None:
    shell = "echo $$ >$1.new && mv $1.new $1; kill -9 $PPID; exec sleep 1000"
    program = f"""
import os, sys
from byteps.launcher.output import Console
from byteps.launcher.process import Command, ProcessGroup
argv = ["sh", "-c", {shell!r}, "sh", sys.argv[1]]
ProcessGroup([Command(label="r0", argv=argv, env=os.environ)], Console()).run()
"""
    files = [tmp_path / str(i) for i in range(4)]
    for file in files:
        launcher = subprocess.run([sys.executable, "-c", program, file], check=False, timeout=DEADLINE_S)
        assert launcher.returncode == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(int(file.read_text())) for file in files))


def test_survivors_may_report_before_they_are_stopped(start: Any) -> None:
    survivor = """
here(NAME)
while not Path('r1.pid').exists(): time.sleep(0.01)
while Path('/proc/' + Path('r1.pid').read_text()).exists(): time.sleep(0.01)
sys.exit('r1 is lost')
"""
    guilty = """
here(NAME)
while not Path('r0.pid').exists(): time.sleep(0.01)
sys.exit(3)
"""
    code, _, err = start({"r0": survivor, "r1": guilty}, to_report=DEADLINE_S).finish()
    assert code == 3
    assert "[r0] r1 is lost" in err


def test_stubborn_and_stopped_processes_are_killed(start: Any) -> None:
    stopped = "here(NAME); os.kill(os.getpid(), signal.SIGSTOP)"
    fails_last = "\nwhile not (Path('r0.pid').exists() and Path('r1.pid').exists()): time.sleep(0.01)\nsys.exit(3)"
    group = start({"r0": STUBBORN, "r1": stopped, "r2": fails_last})
    assert group.finish()[0] == 3
    assert not is_alive(group.pid("r0"))
    assert not is_alive(group.pid("r1"))


def test_what_a_process_started_ends_with_it(start: Any) -> None:
    leaves_child = "here('child', subprocess.Popen(['sleep', '1000']).pid)"
    group = start({"r0": leaves_child})
    assert group.finish()[0] == 0
    wait_until(lambda: not is_alive(group.pid("child")))


def test_ctrl_c_interrupts_all_and_exits_with_130(start: Any) -> None:
    polite = "here(NAME)\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: print('interrupted')"
    group = start({"r0": polite, "r1": polite}, to_stop=DEADLINE_S)
    group.pid("r0"), group.pid("r1")
    group.process.send_signal(signal.SIGINT)
    code, out, _ = group.finish()
    assert code == 130
    assert sorted(out.splitlines()) == ["[r0] interrupted", "[r1] interrupted"]


def test_a_second_ctrl_c_kills(start: Any) -> None:
    group = start({"r0": STUBBORN}, to_stop=1000)
    pid = group.pid("r0")
    group.process.send_signal(signal.SIGINT)
    assert "SIGINT" in group.process.stderr.readline()
    group.process.send_signal(signal.SIGINT)
    assert group.finish()[0] == 130
    assert not is_alive(pid)


def test_sigterm_stops_all(start: Any) -> None:
    group = start({"r0": FOREVER})
    pid = group.pid("r0")
    group.process.terminate()
    assert group.finish()[0] == 143
    assert not is_alive(pid)


def test_nohup_is_respected(start: Any) -> None:
    ignoring = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        group = start({"r0": "here(NAME)\nwhile not Path('go').exists(): time.sleep(0.01)"})
    finally:
        signal.signal(signal.SIGHUP, ignoring)
    group.pid("r0")
    group.process.send_signal(signal.SIGHUP)
    (group.folder / "go").touch()
    assert group.finish()[0] == 0


def test_a_killed_launcher_takes_all_with_it(start: Any) -> None:
    shell = "here('child', subprocess.Popen(['sleep', '1000']).pid); here(NAME); time.sleep(1000)"
    group = start({"r0": shell, "r1": STUBBORN})
    pids = [group.pid(name) for name in ("child", "r0", "r1")]
    group.process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_servers_leave_after_the_workers(start: Any) -> None:
    worker = "time.sleep(0.1); here(NAME)"
    server = "\nwhile not Path('r0.pid').exists(): time.sleep(0.01)\nprint('left')"
    code, out, _ = start({"r0": worker, "s0": server}, to_leave=DEADLINE_S).finish()
    assert (code, out) == (0, "[s0] left\n")


def test_a_server_that_stays_is_stopped_and_that_is_no_failure(start: Any) -> None:
    group = start({"r0": "here(NAME)", "s0": FOREVER})
    assert group.finish()[0] == 0
    assert not is_alive(group.pid("s0"))


def test_a_server_that_fails_stops_the_workers(start: Any) -> None:
    group = start({"r0": FOREVER, "s0": "sys.exit(1)"})
    code, _, err = group.finish()
    assert code == 1
    assert "s0 (host" in err


def test_a_reader_that_goes_away_ends_the_job(start: Any) -> None:
    chatty = "here(NAME)\nwhile True: print('x' * 1000)"
    group = start({"r0": chatty})
    pid = group.pid("r0")
    group.process.stdout.close()
    assert group.process.wait(DEADLINE_S) != 0
    wait_until(lambda: not is_alive(pid))
