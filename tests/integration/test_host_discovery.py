"""bpslaunch starts and ends workers on the machines that a script names. A shell plays ssh."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.cluster import Member, wait_until

pytestmark = pytest.mark.timeout(180)

SSH = '#!/bin/sh\n[ "$1" = unreachable ] && exit 255\n[ "$1" = dead ] && exec sleep 1000\nshift\nexec sh -c "$1"\n'
PROGRAM_TEXT = """
import sys, time
import numpy as np
import byteps
from byteps import elastic

byteps.init()
sizes = [int(size) for size in sys.argv[1:]]  # of the job, one after the other; then it ends
state = elastic.ObjectState(step=0, seen=0)


@elastic.run
def train(state):
    print(f"begins at step {state.step} as rank {byteps.rank()} of {byteps.size()}", flush=True)
    while state.seen < len(sizes):
        total = byteps.push_pull(np.ones(1000, np.float32), average=False, name="x")
        assert (total == total[0]).all()
        state.step += 1
        state.seen += byteps.size() == sizes[state.seen]
        time.sleep(0.02)
        state.commit()


train(state)
print(f"done as rank {byteps.rank()} of {byteps.size()}", flush=True)
byteps.shutdown()
"""


class DiscoveredJob:
    """One bpslaunch, with a file of hosts that its script prints."""

    def __init__(self, folder: Path, hosts: str, sizes: Sequence[int]) -> None:
        self.folder = folder
        self.hosts = folder / "hosts"
        self.write(hosts)
        for name, text in (("hosts.sh", f"#!/bin/sh\ncat {self.hosts}\n"), ("ssh.sh", SSH)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "program.py").write_text(PROGRAM_TEXT)
        (folder / "job.key").write_text("a secret that all machines share\n")
        (folder / "job.key").chmod(0o600)
        command = [
            sys.executable, "-m", "byteps.launcher.launch", "--host-discovery-script", folder / "hosts.sh",
            "--remote-shell", folder / "ssh.sh", "--master-addr", "127.0.0.1", "--min-workers", "2",
            "--max-restarts", "1", "--secret-file", folder / "job.key",
            "--", sys.executable, folder / "program.py", *map(str, sizes),
        ]  # fmt: skip
        env = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
        env |= {"OMP_NUM_THREADS": "1", "BYTEPS_GRACE_S": "3"}
        self.launcher = Member("bpslaunch", command, env, folder)

    def write(self, hosts: str) -> None:
        """All at once, because the script may read it at any time."""
        new = self.hosts.with_suffix(".new")
        new.write_text(hosts)
        new.replace(self.hosts)

    def pids(self) -> list[int]:
        """The processes of the job, without this bpslaunch: by the path of their program."""
        found = subprocess.run(["pgrep", "-f", str(self.folder / "program.py")], capture_output=True, check=False)
        return [int(pid) for pid in found.stdout.split() if int(pid) != self.launcher.process.pid]

    def end(self) -> None:
        self.launcher.kill()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=[(3, 2)])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DiscoveredJob]:
    job = DiscoveredJob(tmp_path, "one:2\ntwo\n", request.param)
    yield job
    job.end()


def test_machines_come_and_go(job: DiscoveredJob) -> None:
    launcher = job.launcher
    launcher.wait_for("of 3")
    job.write("one:2\ntwo\nunreachable # for ssh\ndead\n")
    launcher.wait_for("dead: starts workers")
    launcher.wait_for("unreachable: its workers have failed 2 times; it is not used any more")
    command_lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.pids()]
    assert command_lines
    assert not any(b"a secret" in line or b"SECRET" in line for line in command_lines), "other users see it"
    job.write("two\nthree\n")
    assert launcher.end() == 0, launcher.describe()
    assert launcher.output.count("SIGTERM: this worker leaves after its step") == 2, launcher.describe()
    assert "one: its workers have left" in launcher.output
    assert "dead: its workers have left" in launcher.output, "killed after the grace"
    done = re.findall(r"^\[(\w+)\] .*done as rank \d of 2$", launcher.output, re.MULTILINE)
    assert sorted(done) == ["three", "two"], launcher.describe()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_bpslaunch(job: DiscoveredJob, number: signal.Signals) -> None:
    job.launcher.wait_for("of 3")
    job.launcher.process.send_signal(number)
    wait_until(lambda: not job.pids(), lambda: f"{job.pids()} run\n{job.launcher.describe()}")
    assert job.launcher.end() != 0


@pytest.mark.parametrize("job", [(3, 2, 3, 2)], indirect=True)
def test_a_lost_bpslaunch_of_a_machine_is_started_again(job: DiscoveredJob) -> None:
    launcher = job.launcher
    launcher.wait_for("of 3")
    remote = subprocess.run(
        ["pgrep", "-f", f"^{sys.executable} -c .*--started-remotely --nproc-per-node=1 .*{job.folder}"],
        capture_output=True,
        check=True,
    )
    os.kill(int(remote.stdout.split()[0]), signal.SIGKILL)
    launcher.wait_for("two: tries again in 4 s")
    launcher.wait_for("two: starts workers", 2)
    launcher.wait_for("of 3", 6)
    job.write("one:2\n")
    assert launcher.end() == 0, launcher.describe()
