"""Ranks that cannot share memory use TCP with the same bits, and log the reason once."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.job import ROOT

from benchmarks.lab import Lab, why_impossible
from benchmarks.lab.job import LabJob

PROGRAM = ROOT / "tests/support/training_steps.py"
STEPS = 3
RANKS = 3
DETOUR = re.compile(r"no shared memory with rank (\d+) \(.*\), TCP instead: (.*)")
SETTINGS = {
    "BYTEPS_LOG_LEVEL": "info",
    "BYTEPS_TIMEOUT_S": "60",  # waiting for it would fail the test
    "BYTEPS_SERVER_ENGINE_THREAD": "2",  # number of connections: two to each other rank
    "BYTEPS_PARTITION_BYTES": str(256 << 10),
}
TOO_SMALL = ["prlimit", f"--fsize={1 << 20}", "--"]  # a file, also one in memory, may not be larger
NO_FILE = "ftruncate: File too large"
IMPOSSIBLE = why_impossible()
needs_lab = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}")


@dataclass(frozen=True)
class Rank:
    """The results of a rank."""

    digest: str
    bytes_sent: float  # bytes that do not go through shared memory
    detours: Mapping[int, str]  # rank -> why not


def read_rank(folder: Path, rank: int, log: str) -> Rank:
    result = json.loads((folder / f"rank{rank}.json").read_text())
    lines = DETOUR.findall(log)
    assert len(lines) == len({peer for peer, _ in lines}), f"told more than once:\n{log}"
    return Rank(result["digest"], result["metrics"]["bytes_sent"], {int(peer): why for peer, why in lines})


@dataclass(frozen=True)
class Peculiar:
    """The settings of ranks that differ from the others."""

    env: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str | Path] = ()


def train(folder: Path, ranks: int = RANKS, peculiar: Mapping[int, Peculiar] | None = None) -> list[Rank]:
    with Cluster(folder, ranks, hosted=True, env=SETTINGS) as cluster:
        for rank in range(ranks):
            own = (peculiar or {}).get(rank, Peculiar())
            cluster.start_rank(rank, str(folder), str(STEPS), program=PROGRAM, env=own.env, before=own.before)
        for member in cluster.members.values():
            assert member.end() == 0, cluster.describe()
        return [read_rank(folder, rank, cluster[f"rank {rank}"].output) for rank in range(ranks)]


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the digest of the sums through shared memory."""
    trained = train(tmp_path_factory.mktemp("shared"))
    assert [rank.bytes_sent for rank in trained] == [0.0] * RANKS
    assert [rank.detours for rank in trained] == [{}] * RANKS
    assert len({rank.digest for rank in trained}) == 1
    return trained[0].digest


@pytest.mark.parametrize(
    ("peculiar", "reason"),
    [(Peculiar(env={"BYTEPS_SHM": "0"}), "BYTEPS_SHM is 0"), (Peculiar(before=TOO_SMALL), NO_FILE)],
    ids=["switched off", "refused by the kernel"],
)
def test_on_all_ranks(peculiar: Peculiar, reason: str, digest: str, tmp_path: Path) -> None:
    trained = train(tmp_path, peculiar=dict.fromkeys(range(RANKS), peculiar))
    for number, rank in enumerate(trained):
        assert rank.digest == digest
        assert rank.bytes_sent > 0
        assert set(rank.detours) == set(range(RANKS)) - {number}
        assert all(reason in why for why in rank.detours.values()), rank.detours


@pytest.mark.parametrize(
    ("peculiar", "reason"),
    [(Peculiar(env={"BYTEPS_SHM": "0"}), "BYTEPS_SHM is 0"), (Peculiar(before=TOO_SMALL), NO_FILE)],
    ids=["switched off", "refused by the kernel"],
)
def test_on_one_rank(peculiar: Peculiar, reason: str, digest: str, tmp_path: Path) -> None:
    """The others go on sharing memory with each other."""
    trained = train(tmp_path, peculiar={1: peculiar})
    assert {rank.digest for rank in trained} == {digest}
    assert set(trained[1].detours) == {0, 2}
    assert all(reason in why for why in trained[1].detours.values()), trained[1].detours
    for rank in (trained[0], trained[2]):
        assert set(rank.detours) == {1}
        assert "it offers none" in rank.detours[1]


def test_memory_that_is_refused_at_the_first_push_pull_only(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, hosted=True, env=SETTINGS) as cluster:
        for rank in (0, 1):
            cluster.start_rank(rank, "init", "pause", "step*3", "shutdown")
        for member in cluster.members.values():
            member.wait_for("did init")
        resource.prlimit(cluster["rank 1"].pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for member in cluster.members.values():
            member.resume_plan()
        for member in cluster.members.values():
            assert member.end() == 0, cluster.describe()
        assert DETOUR.findall(cluster["rank 0"].output) == []
        ((peer, why),) = DETOUR.findall(cluster["rank 1"].output)
        assert peer == "0" and NO_FILE in why


def test_other_machines_need_no_excuse(tmp_path: Path) -> None:
    """Ranks 0 and 1 are on one machine, rank 2 is on another: by its word, and then by its boot."""
    peculiar = {"word": Peculiar(env={"BYTEPS_MACHINE": "another"})}
    if IMPOSSIBLE is None:  # root may pretend
        (tmp_path / "boot_id").write_text("00000000-1111-2222-3333-444444444444\n")
        other_boot = f'mount --bind {tmp_path}/boot_id /proc/sys/kernel/random/boot_id && exec "$0" "$@"'
        peculiar["boot"] = Peculiar(before=["unshare", "--mount", "sh", "-c", other_boot])
    digests = set()
    for kind, other in peculiar.items():
        (tmp_path / kind).mkdir()
        trained = train(tmp_path / kind, peculiar={2: other})
        assert [rank.detours for rank in trained] == [{}] * RANKS
        assert trained[2].bytes_sent > 0
        digests |= {rank.digest for rank in trained}
    assert len(digests) == 1


@needs_lab
def test_one_machine_by_its_word_but_not_its_network(digest: str, tmp_path: Path) -> None:
    """Containers: ranks try names of other ranks that do not exist here, and lose no time."""
    with Lab([1000] * RANKS) as lab:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        job = LabJob(lab, RANKS, 0, {**SETTINGS, "BYTEPS_MACHINE": "both", "PYTHONPATH": paths})
        processes = []
        for host in job.workers:
            with (tmp_path / f"{host.name}.log").open("wb") as log:
                command = [sys.executable, PROGRAM, tmp_path, str(STEPS)]
                processes.append(lab.popen(host.number, command, env=job.environment(host), stdout=log, stderr=log))
        for process in processes:
            assert process.wait(40) == 0, [path.read_text() for path in tmp_path.glob("*.log")]
    for number in range(RANKS):
        rank = read_rank(tmp_path, number, (tmp_path / f"host{number}.log").read_text())
        assert rank.digest == digest
        assert set(rank.detours) == set(range(RANKS)) - {number}
        assert all("Connection refused" in why for why in rank.detours.values()), rank.detours
