"""The lab's relay: each impairment does what it says, on the path that it was asked for."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.lab import Impairments, Lab, why_impossible
from benchmarks.lab.relay import Counts, why_no_relay

ROOT = Path(__file__).resolve().parents[2]
IMPOSSIBLE = why_impossible() or why_no_relay()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}")

DEADLINE_S = 60.0
PACKETS = 2000

# Answers each datagram that it can.
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
    echo.bind(("", 7000))
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    print("listening", flush=True)
    while True:
        data, sender = echo.recvfrom(10000)
        echo.sendto(data, sender)
"""
# One datagram after the other: prints the round trips in ms, sorted.
PING = """
import socket, sys, time
trips = []
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pinger:
    pinger.settimeout(5)
    pinger.connect((sys.argv[1], 7000))
    for _ in range(20):
        begin = time.monotonic()
        pinger.send(bytes(64))
        pinger.recv(2000)
        trips.append((time.monotonic() - begin) * 1e3)
print(*sorted(trips))
"""
# Numbered datagrams: prints the numbers as they come back.
COUNT = """
import socket, sys, time
numbers = []
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    sender.connect((sys.argv[1], 7000))
    for number in range(int(sys.argv[2])):
        sender.send(number.to_bytes(4, "big") + bytes(60))
        if number % 20 == 19:
            time.sleep(0.002)
    sender.settimeout(1)
    try:
        while True:
            numbers.append(int.from_bytes(sender.recv(2000)[:4], "big"))
    except TimeoutError:
        pass
print(*numbers)
"""


def start_echo(lab: Lab, host: int) -> None:
    echo = lab.popen(host, [sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    assert echo.stdout.readline() == "listening\n"


def output(lab: Lab, host: int, program: str, *arguments: str) -> list[float]:
    command = [sys.executable, "-c", program, *arguments]
    return [
        float(word)
        for word in lab.run(host, command, capture_output=True, text=True, timeout=DEADLINE_S).stdout.split()
    ]


def test_a_delay_is_that_of_each_way() -> None:
    with Lab([1000, 1000], impairments=Impairments(delay_ms=20)) as lab:
        start_echo(lab, 1)
        delayed = output(lab, 0, PING, lab.hosts[1].address)
        lab.relay.impair(Impairments(), 1, 0)
        one_way = output(lab, 0, PING, lab.hosts[1].address)
    # Other processes may hold packets back, so the least trip is the one that says something.
    assert 40 <= delayed[0] < 50
    assert 20 <= one_way[0] < 30


def test_jitter_is_added_to_the_delay_and_keeps_the_order() -> None:
    with Lab([1000, 1000], impairments=Impairments(jitter_ms=10)) as lab:
        start_echo(lab, 1)
        trips = output(lab, 0, PING, lab.hosts[1].address)
        numbers = output(lab, 0, COUNT, lab.hosts[1].address, str(PACKETS))
    assert trips[-1] - trips[0] > 3
    assert numbers == sorted(numbers)


def carry_numbers(impairments: Impairments) -> tuple[list[float], Counts, Counts]:
    """Sends datagrams to an echo over an impaired path.

    Returns the numbers of those that came back, and the counts of the paths there and back.
    """
    with Lab([1000, 1000], impairments=Impairments()) as lab:
        lab.relay.impair(impairments, 0, 1)
        start_echo(lab, 1)
        numbers = output(lab, 0, COUNT, lab.hosts[1].address, str(PACKETS))
        assert lab.relay.overruns() == 0
        return numbers, lab.relay.counts(0, 1), lab.relay.counts(1, 0)


def test_losses_are_those_of_the_path() -> None:
    numbers, there, back = carry_numbers(Impairments(loss_percent=5))
    assert there.carried + there.lost == PACKETS
    assert 0.03 * PACKETS < there.lost < 0.07 * PACKETS
    assert (back.carried, back.lost) == (there.carried, 0)
    assert len(numbers) == there.carried


def test_duplicates_arrive_twice() -> None:
    numbers, there, _ = carry_numbers(Impairments(duplicate_percent=5))
    assert 0.03 * PACKETS < there.duplicated < 0.07 * PACKETS
    assert len(numbers) == PACKETS + there.duplicated
    assert len(set(numbers)) == PACKETS


def test_reordered_packets_are_overtaken_and_arrive() -> None:
    numbers, there, _ = carry_numbers(Impairments(reorder_percent=10))
    assert 0.07 * PACKETS < there.reordered < 0.13 * PACKETS
    assert sorted(numbers) == list(range(PACKETS))
    assert numbers != sorted(numbers)


def test_a_cut_is_one_way_and_can_be_mended() -> None:
    with Lab([1000, 1000, 1000], impairments=Impairments()) as lab:
        start_echo(lab, 1)
        lab.relay.cut(0, 1)
        assert output(lab, 0, COUNT, lab.hosts[1].address, "10") == []
        assert output(lab, 2, COUNT, lab.hosts[1].address, "10") == list(range(10))
        lab.relay.mend(0, 1)
        lab.relay.cut(1, 0)
        assert output(lab, 0, COUNT, lab.hosts[1].address, "10") == []
        assert lab.relay.counts(0, 1).carried == 10
        lab.relay.mend()
        assert output(lab, 0, COUNT, lab.hosts[1].address, "10") == list(range(10))


def test_a_rate_can_change() -> None:
    for impairments in (None, Impairments()):
        with Lab([200, 200], impairments=impairments) as lab:
            lab.set_rate(1, 50)
            assert "rate 200Mbit" in lab.queues(0)
            assert lab.queues(1).count("rate 50Mbit") == 2


def test_mistakes_are_told() -> None:
    for wrong in ({"loss_percent": 101}, {"delay_ms": -1}, {"delay_ms": float("nan")}, {"jitter_ms": float("inf")}):
        with pytest.raises(ValueError, match="percentages from 0 to 100"):
            Impairments(**wrong)
    with pytest.raises(ValueError, match="MTU of at most 9216"):
        Lab([100, 100], mtu=9217, impairments=Impairments())
    with Lab([100, 100]) as lab, pytest.raises(RuntimeError, match="make it with impairments"):
        lab.relay.cut()
    with Lab([100, 100], impairments=Impairments()) as lab:
        with pytest.raises(ValueError, match="host from 0 to 1"):
            lab.relay.cut(0, 2)
        with pytest.raises(ValueError, match="no path"):
            lab.relay.cut(1, 1)
        with pytest.raises(ValueError, match="rate above 0"):
            lab.set_rate(0, 0)


def test_the_largest_packets_are_carried_whole() -> None:
    with Lab([1000, 1000], mtu=9216, impairments=Impairments()) as lab:
        start_echo(lab, 1)
        program = PING.replace("bytes(64)", "bytes(9216 - 28)").replace("recv(2000)", "recv(10000)")
        assert len(output(lab, 0, program, lab.hosts[1].address)) == 20


def test_the_relay_does_not_outlive_a_killed_owner() -> None:
    program = """
        import time
        from benchmarks.lab import Impairments, Lab
        with Lab([100, 100], impairments=Impairments()) as lab:
            print(lab.relay.pid, flush=True)
            time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        relay = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
    with os.fdopen(relay) as ended:
        assert select.select([ended], [], [], DEADLINE_S)[0]


def test_the_command_line_makes_a_bad_network() -> None:
    program = """
        import os, socket, time
        if os.environ["LAB_HOST"] == "host1":
            with socket.create_server(("", 7000)) as listener:
                listener.accept()[0].recv(1)
                raise SystemExit
        begin = time.monotonic()
        while True:  # the other host may need a moment
            try:
                began = time.monotonic()
                with socket.create_connection(("10.77.0.2", 7000), 5):
                    print("connected in ms:", 1e3 * (time.monotonic() - began))
                break
            except ConnectionRefusedError:
                assert time.monotonic() < begin + 20
    """
    lab = ["-m", "benchmarks.lab", "--hosts", "2", "--delay-ms", "15", "--mbps", "100"]
    done = subprocess.run(
        [sys.executable, *lab, "--", sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    connected = re.search(r"host0: connected in ms: ([\d.]+)", done.stdout)
    assert connected is not None, done
    assert 30 <= float(connected[1]) < 60
