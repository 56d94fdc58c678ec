"""Workers are lost and come while training goes on (docs/elastic.md), in real processes."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Member, wait_until
from support.job import job_environment

pytestmark = pytest.mark.timeout(180)

PROGRAM = Path(__file__).with_name("elastic_rank.py")
TORCH_PROGRAM = Path(__file__).with_name("elastic_torch_rank.py")
TIMEOUT_S = 4.0


class ElasticJob:
    """A coordinator, and workers that a test starts and ends one by one."""

    def __init__(self, folder: Path, *, initial: int, least: int = 1) -> None:
        self.folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.env = job_environment(port, 1) | {
            "BYTEPS_ELASTIC": "1",
            "BYTEPS_TIMEOUT_S": str(TIMEOUT_S),
            "BYTEPS_INITIAL_WORKERS": str(initial),
            "BYTEPS_MIN_WORKERS": str(least),
            "BYTEPS_GATHER_S": "0.05",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port),
        }
        self.workers: list[Member] = []
        self._listener.close()
        coordinator_env = self.env | {"DMLC_ROLE": "coordinator"}
        self.coordinator = Member("coordinator", [sys.executable, "-m", "byteps.server"], coordinator_env, folder)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        for member in (self.coordinator, *self.workers):
            member.kill()

    def start(self, steps: int, pause_s: float = 0.01) -> Member:
        number = len(self.workers)
        command = [sys.executable, PROGRAM, str(number), str(steps), str(pause_s)]
        env = self.env | {"BYTEPS_START_TIMEOUT_S": "10"}  # only for the connection to the coordinator
        self.workers.append(Member(f"worker {number}", command, env, self.folder))
        return self.workers[-1]

    def sums(self) -> dict[int, set[str]]:
        """The sums of each step that the workers have printed, also those that are lost.

        Of its last step, one that is lost may have a result that nobody else has got.
        """
        sums = defaultdict(set)
        for worker in self.workers:
            steps = re.findall(r"^step (\d+) sums (.+)$", worker.output, re.MULTILINE)
            is_lost = worker.process.poll() not in {0, None}
            for step, text in steps[: len(steps) - is_lost]:
                sums[int(step)].add(text)
        return sums

    def check_sums(self, steps: int) -> None:
        sums = self.sums()
        assert sorted(sums) == list(range(steps)), self.describe()
        differing = {step: texts for step, texts in sums.items() if len(texts) > 1}
        assert not differing, self.describe()

    def describe(self) -> str:
        return "\n".join(member.describe() for member in (self.coordinator, *self.workers))


def test_workers_are_lost_and_come_all_the_time(tmp_path: Path) -> None:
    pick = random.Random(os.environ.get("BYTEPS_TEST_SEED", "1"))
    steps = int(os.environ.get("BYTEPS_TEST_STEPS", "400"))
    with ElasticJob(tmp_path, initial=3) as job:
        for _ in range(3):
            job.start(steps)
        job.workers[0].wait_for("step 20 ")
        alive = list(job.workers)
        while not any(f"step {steps - 150} " in worker.output for worker in alive):
            begun = [worker for worker in alive if "begins at" in worker.output]
            if len(begun) > 2 and pick.random() < 0.5:
                victim = pick.choice(begun)
                victim.kill()
                alive.remove(victim)
            elif len(alive) < 5:
                alive.append(job.start(steps))
            time.sleep(pick.uniform(0.1, 0.8))
        for worker in alive:
            assert worker.end() == 0, job.describe()
        assert job.coordinator.end() == 0, job.describe()
        job.check_sums(steps)


def three_workers(folder: Path, steps: int) -> ElasticJob:
    job = ElasticJob(folder, initial=3)
    for _ in range(3):
        job.start(steps)
    return job


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ElasticJob]:
    with three_workers(tmp_path, 200) as job:
        for worker in job.workers:
            worker.wait_for("step 20 ")
        yield job


def test_one_that_is_stopped_is_left_behind_and_comes_again(tmp_path: Path) -> None:
    """It is silent for BYTEPS_TIMEOUT_S, learns of its loss when it continues, and enrols anew."""
    with three_workers(tmp_path, 500) as job:
        stopped = job.workers[1]
        stopped.wait_for("step 20 ")
        stopped.stop()
        for worker in (job.workers[0], job.workers[2]):
            worker.wait_for(" of 2\n")
        stopped.go_on()
        for worker in job.workers:
            assert worker.end() == 0, job.describe()
        assert "has been silent for" in stopped.output, stopped.describe()
        assert "done as rank 2 of 3" in stopped.output, stopped.describe()
        job.check_sums(500)


def test_one_that_is_told_to_end_finishes_its_step(three: ElasticJob) -> None:
    leaver = three.workers[1]
    leaver.process.send_signal(signal.SIGTERM)
    assert leaver.end() == 128 + signal.SIGTERM, leaver.describe()
    assert "this worker leaves after its step" in leaver.output
    for worker in (three.workers[0], three.workers[2]):
        assert worker.end() == 0, three.describe()
    three.check_sums(200)


def test_the_coordinator_is_lost(three: ElasticJob) -> None:
    """Training goes on, until another worker is lost."""
    three.coordinator.kill()
    three.workers[0].wait_for("training goes on, but no worker may come or be lost any more")
    step = len(three.sums())
    wait_until(lambda: len(three.sums()) > step + 20, three.describe)
    three.workers[2].kill()
    for worker in three.workers[:2]:
        assert worker.end() != 0, three.describe()
        assert "the coordinator (tcp" in worker.output, three.describe()


def test_bpslaunch_starts_a_lost_worker_again(tmp_path: Path) -> None:
    bpslaunch = Path(sys.executable).with_name("bpslaunch")
    command = [bpslaunch, "--nproc-per-node", "2", "--min-workers", "2", TORCH_PROGRAM, "150"]
    log = tmp_path / "output"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            wait_until(lambda: "step 20" in log.read_text(), log.read_text)
            pid = int(re.search(r"pid (\d+) begins", log.read_text())[1])  # type: ignore[index]
            os.kill(pid, signal.SIGKILL)
            assert process.wait(120) == 0, log.read_text()
        finally:
            process.kill()
    text = log.read_text()
    assert "starts again; restarts left: 2" in text
    digests = re.findall(r"done as rank (\d) of 2: (\w+)", text)
    assert {rank for rank, _ in digests} == {"0", "1"}, text
    assert len({digest for _, digest in digests}) == 1, text


def test_bpslaunch_ends_if_no_worker_is_left(tmp_path: Path) -> None:
    bpslaunch = Path(sys.executable).with_name("bpslaunch")
    program = tmp_path / "fails.py"
    program.write_text("import byteps\nbyteps.init()\nraise KeyError('label')\n")
    command = [bpslaunch, "--nproc-per-node", "2", "--min-workers", "1", "--max-restarts", "1", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stderr
    assert "KeyError: 'label'" in done.stderr
