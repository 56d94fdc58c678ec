"""The network lab: its links have the given speeds, and nothing is left after its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab import UNLIMITED, Lab, why_impossible
from benchmarks.lab.job import LabJob
from benchmarks.lab.keeper import processes_in

ROOT = Path(__file__).resolve().parents[2]
IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}")

PATIENCE_S = 30.0
SEND = "import socket, sys; s = socket.create_connection((sys.argv[1], 7000), 20); s.sendall(bytes(1 << 20)); s.close()"
RECEIVE = """
import socket
with socket.create_server(("", 7000)) as listener:
    print("listening", flush=True)
    connection, _ = listener.accept()
    print(sum(iter(lambda: len(connection.recv(1 << 16)), 0)))
"""


class LabError(Exception):
    """An error of the lab's user."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.02)


def network_of(lab: Lab, host: int) -> int:
    shown = lab.run(host, ["readlink", "/proc/self/ns/net"], capture_output=True, text=True).stdout
    return int(re.sub(r"\D", "", shown))


def carry_one_mebibyte(lab: Lab, sender: int, receiver: int) -> int:
    listening = lab.popen(receiver, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
    assert listening.stdout is not None
    assert listening.stdout.readline() == "listening\n"
    lab.run(sender, [sys.executable, "-c", SEND, lab.hosts[receiver].address], timeout=PATIENCE_S)
    return int(listening.communicate(timeout=PATIENCE_S)[0])


def test_a_link_without_a_limit_has_no_queue_and_byteps_is_not_told_a_speed() -> None:
    with Lab([UNLIMITED, 1000]) as lab:
        assert "tbf" not in lab.queues(0)
        assert "tbf" in lab.queues(1)
        assert carry_one_mebibyte(lab, 0, 1) == 1 << 20
        job = LabJob(lab, 2, 0)
        assert [job.environment(host)["BYTEPS_NIC_MBPS"] for host in lab.hosts] == ["0", "1000"]
        with pytest.raises(ValueError, match="inf"):
            lab.set_rate(1, UNLIMITED)


def test_every_host_reaches_every_other_one() -> None:
    with Lab([1000, 1000, 1000]) as lab:
        for sender, receiver in [(0, 1), (1, 2), (2, 0)]:
            assert carry_one_mebibyte(lab, sender, receiver) == 1 << 20


def test_both_directions_of_a_link_have_the_rate_of_their_host() -> None:
    with Lab([200, 100.5]) as lab:
        assert re.findall(r"tbf .* rate (\S+)", lab.queues(0)) == ["200Mbit", "200Mbit"]
        assert re.findall(r"tbf .* rate (\S+)", lab.queues(1)) == ["100500Kbit", "100500Kbit"]


def test_payload_passes_the_limited_ends() -> None:
    with Lab([200, 200]) as lab:
        carry_one_mebibyte(lab, 0, 1)
        sent = [int(number) for number in re.findall(r"Sent (\d+) bytes", lab.queues(0) + lab.queues(1))]
        egress_of_0, ingress_of_1 = sent[0], sent[3]
        assert egress_of_0 > 1 << 20
        assert ingress_of_1 > 1 << 20
        assert lab.counters(0)[1] > 1 << 20
        assert lab.counters(1)[0] > 1 << 20


def test_hosts_look_like_machines_of_their_own() -> None:
    with Lab([100, 100]) as lab:
        lab.run(0, ["touch", "/dev/shm/mine"])
        seen = [
            lab.run(host, ["sh", "-c", "hostname; ls /dev/shm"], capture_output=True, text=True).stdout
            for host in (0, 1)
        ]
        interfaces = lab.run(1, ["ls", "/sys/class/net"], capture_output=True, text=True).stdout
    assert seen == ["host0\nmine\n", "host1\n"]
    assert interfaces.split() == ["eth0", "lo"]
    assert not Path("/dev/shm/mine").exists()


def test_a_process_on_a_host_keeps_pid_folder_and_environment(tmp_path: Path) -> None:
    with Lab([100]) as lab:
        command = ["sh", "-c", "echo $$ $PWD $WORD"]
        process = lab.popen(
            0, command, cwd=tmp_path, env={**os.environ, "WORD": "here"}, stdout=subprocess.PIPE, text=True
        )
        assert process.communicate()[0] == f"{process.pid} {tmp_path} here\n"


def test_two_labs_at_once_do_not_meet() -> None:
    with Lab([100, 100]) as one, Lab([100, 100]) as other:
        assert carry_one_mebibyte(one, 0, 1) == carry_one_mebibyte(other, 0, 1)
        assert network_of(one, 0) != network_of(other, 0)
        assert other.counters(1)[0] < 2 << 20


def test_an_exception_ends_all_processes() -> None:
    with pytest.raises(LabError), Lab([100]) as lab:
        network = network_of(lab, 0)
        process = lab.popen(0, ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
        wait_until(lambda: len(processes_in({network})) == 2, "both run")
        raise LabError
    assert process.returncode == -signal.SIGKILL
    assert processes_in({network}) == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_nothing_outlives_a_killed_owner(end: signal.Signals) -> None:
    program = """
        import re, sys
        from benchmarks.lab import Lab
        with Lab([100, 100]) as lab:
            sleeper = lab.popen(1, ["sh", "-c", "setsid sleep 1000 & echo $$; exec sleep 1000"])
            shown = lab.run(1, ["readlink", "/proc/self/ns/net"])
            sleeper.wait()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    lines = {owner.stdout.readline().strip() for _ in range(2)}
    network = int(next(re.sub(r"\D", "", line) for line in lines if line.startswith("net:")))
    wait_until(lambda: len(processes_in({network})) == 2, "both run")
    owner.send_signal(end)
    assert owner.wait(PATIENCE_S) == -end
    wait_until(lambda: not processes_in({network}), "the keeper has ended them")
    owner.stdout.close()


def test_a_lab_that_cannot_be_made_leaves_nothing() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="mtu"), Lab([100, 100], mtu=10):
        pass
    assert set(Path("/proc/self/fd").iterdir()) == before


START_A_JOB = "import byteps; byteps.init(); byteps.shutdown()"


def test_byteps_measures_what_the_links_carry() -> None:
    """A busy machine carries less than its links would, so the test tries again."""
    rates = [50, 100, 100, 50, 200]
    reports: list[str] = []
    while not (reports and _are_the_rates(reports[-1], rates)):
        assert len(reports) < 5, reports
        reports.append(_report_of_rates(rates))


def _report_of_rates(rates: list[int]) -> str:
    """Returns what a job logs about the rates of its network cards."""
    command = [sys.executable, "-m", "benchmarks.lab", "--unknown", "--servers", "1", "--mbps", *map(str, rates), "--"]
    job = ["env", "BYTEPS_LOG_LEVEL=info", sys.executable, "-c", START_A_JOB]
    done = subprocess.run([*command, *job], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reported = re.search(r"network cards: (.*)", done.stdout)
    assert reported is not None, done.stdout
    return reported[1]


def _are_the_rates(report: str, rates: list[int]) -> bool:
    measured = {}
    for mbps, hosts in re.findall(r"(\d+) Mbit/s: ((?:host\d+(?:, | and (?=host))?)+)", report):
        measured |= {int(host): int(mbps) for host in re.findall(r"host(\d+)", hosts)}
    assert measured.keys() == set(range(len(rates))), report
    return all(0.8 * rate < measured[host] < 1.15 * rate for host, rate in enumerate(rates))
