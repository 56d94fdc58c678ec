"""byteps doctor on a machine with RDMA devices, and between two machines."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
from rdma import image
from rdma.batch import run_all_in_vm
from rdma.machine import TEST_LIMIT_S, Completed
from rdma.verbs import pyverbs_path, why_no_pyverbs

ROOT = Path(__file__).resolve().parents[2]
IMPOSSIBLE = image.why_impossible()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no virtual machine here: {IMPOSSIBLE}"),
    pytest.mark.timeout(TEST_LIMIT_S),
]

COMMAND_LIMIT_S = 100.0
DOCTOR = f"{sys.executable} -m byteps.cli doctor"
# Root may lock any memory, unless it may not become what may.
BOUND = "setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock"
LISTEN = f"""
export DMLC_NODE_HOST=10.77.0.2 BYTEPS_SECRET=0123456789abcdef0123456789abcdef BYTEPS_RDMA_DEVICES=rxe1
listen() {{
  DMLC_NODE_HOST=10.77.0.1 BYTEPS_RDMA_DEVICES=rxe0 \
    env --default-signal=INT {DOCTOR} --listen 10.77.0.1:9999 >/tmp/listener 2>&1 &
  until ss -Hltn "sport = :9999" | grep -q .; do kill -0 $! || break; sleep 0.2; done
}}
end() {{
  status=$?
  kill -INT $!
  wait $!
  echo "ended with $?" >>/tmp/listener
  cat /tmp/listener >&2
  exit $status
}}
"""
# TCP goes by lo, as the client's end is not bound; RDMA goes to a card that nobody has.
CUT = "ip neighbour replace 10.77.0.1 lladdr 02:77:00:00:00:99 dev veth1 nud permanent"
SCRIPTS = {
    "two_devices": f"{DOCTOR} --json",
    "pyverbs": f"PYTHONPATH=$PYVERBS:$PYTHONPATH {DOCTOR} --json",
    "one_is_named": f"BYTEPS_RDMA_DEVICES=rxe1 DMLC_NODE_HOST=10.77.0.2 {DOCTOR} --json",
    "no_such_gid": f"BYTEPS_TRANSPORT=rdma BYTEPS_RDMA_GID_INDEX=7 BYTEPS_RDMA_DEVICES=rxe0 {DOCTOR} --json",
    "little_memory": f"BYTEPS_TRANSPORT=rdma prlimit --memlock=65536 {BOUND} {DOCTOR} --json",
    "some_memory": f"prlimit --memlock=8388608 {BOUND} {DOCTOR} --json",
    "peer": f"{LISTEN} listen; {DOCTOR} --json --peer 10.77.0.1:9999; end",
    "nobody": f"BYTEPS_TIMEOUT_S=2 {DOCTOR} --json --peer 127.0.0.1:9998",
    "cut": f"{LISTEN} listen; {CUT}; {DOCTOR} --json --peer 10.77.0.1:9999; end",
    # From here on nothing is as it was.
    "no_address": f"ip address flush dev veth1 scope global; BYTEPS_RDMA_DEVICES=rxe1 {DOCTOR} --json",
    "port_down": f"ip link set veth1 down; {DOCTOR} --json",
    "port_down_but_wanted": f"BYTEPS_TRANSPORT=rdma {DOCTOR} --json",
    "no_device": f"rdma link del rxe0; rdma link del rxe1; BYTEPS_TRANSPORT=rdma {DOCTOR} --json",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Completed]:
    """Runs all commands in one boot, since each takes several seconds."""
    environment = {"PYTHONPATH": str(ROOT), "PYVERBS": str(pyverbs_path(tmp_path_factory.mktemp("python")))}
    commands = {name: ["bash", "-c", textwrap.dedent(script)] for name, script in SCRIPTS.items()}
    return run_all_in_vm(commands, COMMAND_LIMIT_S, env=environment, folder=ROOT)


def report(ended: Completed, status: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Topic -> states and texts."""
    assert ended.status == status, ended.describe()
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(ended.stdout):
        findings.setdefault(finding["topic"], []).append((finding["state"], finding["text"]))
    return findings


def test_devices_are_described_and_opened(ran: dict[str, Completed]) -> None:
    found = report(ran["two_devices"])
    assert found["transport rdma"] == [("ok", "usable")]
    for number in (0, 1):
        (state, port), (opened_state, opened) = found[f"rdma rxe{number}:1"]
        address = f"::ffff:10.77.0.{number + 1}"
        assert state == opened_state == "ok"
        assert port.startswith(f"RoCE on veth{number}, ACTIVE (LinkUp), 10 Gbit/s")
        assert f"1: {address} (RoCE v2)" in port
        assert f"GID {address} (RoCE v2, index 1), packets of 4096 bytes" in opened
    assert [(state, text.split(": ")[0]) for state, text in found["rdma rails"]] == [("ok", "rxe0:1, rxe1:1")]
    assert [state for state, _ in found["locked memory"]] == ["ok"]


def test_pyverbs_sees_the_same(ran: dict[str, Completed]) -> None:
    if reason := why_no_pyverbs():
        pytest.skip(reason)
    (first_state, first), (second_state, second) = report(ran["pyverbs"])["rdma pyverbs"]
    assert first_state == second_state == "ok"
    assert first.startswith("rxe0: the same GIDs (2)")
    assert second.startswith("rxe1: the same GIDs (2)")


def test_what_is_not_used_says_why(ran: dict[str, Completed]) -> None:
    found = report(ran["one_is_named"])
    assert found["rdma rails"] == [("ok", "rxe1:1: BYTEPS_RDMA_DEVICES")]
    assert found["rdma rxe0:1"][1] == ("ok", "not used: BYTEPS_RDMA_DEVICES does not name it")


def test_a_gid_that_is_not_there_is_an_error_where_rdma_is_demanded(ran: dict[str, Completed]) -> None:
    state, text = report(ran["no_such_gid"], 1)["rdma rxe0:1"][1]
    assert state == "wrong"
    assert text.startswith("cannot be opened: rxe0 port 1")
    assert "7" in text


def test_a_limit_of_locked_memory_that_is_too_low_is_told_with_the_remedy(ran: dict[str, Completed]) -> None:
    ((state, text),) = report(ran["little_memory"], 1)["locked memory"]
    assert state == "wrong"
    assert "the limit of locked memory is 64 KiB" in text
    assert "ulimit -l unlimited" in text
    ((state, text),) = report(ran["some_memory"])["locked memory"]
    assert state == "note"
    assert text.startswith("8192 KiB: RDMA locks about the size of the model")


def test_two_machines_check_the_way_between_them(ran: dict[str, Completed]) -> None:
    found = report(ran["peer"])
    ((state, text),) = found["peer 10.77.0.1:9999"]
    assert (state, text.startswith("localhost by TCP from 10.77.0.2: round trip ")) == ("ok", True)
    ((state, text),) = found["peer 10.77.0.1:9999 by RDMA"]
    assert state == "ok"
    ends = r"rxe1 port 1, ::ffff:10\.77\.0\.2 .* to rdma 10\.77\.0\.1:\d+ \(rxe0 port 1, ::ffff:10\.77\.0\.1 .*\)"
    assert re.search(rf"^{ends}: round trip \d+ us, about [\d.e-]+ Gbit/s", text), text
    heard = ran["peer"].stderr
    assert re.search(r"^rdma 10\.77\.0\.\d+:\d+ \(rxe1 port 1, .*: \d+ frames echoed$", heard, re.MULTILINE), heard
    assert heard.endswith("ended with 0\n")  # ends by Ctrl-C


def test_a_peer_that_is_not_there_is_an_error(ran: dict[str, Completed]) -> None:
    ((state, text),) = report(ran["nobody"], 1)["peer 127.0.0.1:9998"]
    assert state == "wrong"
    assert text.startswith("not reachable by TCP: ")


def test_a_peer_that_is_reached_by_tcp_only_is_an_error(ran: dict[str, Completed]) -> None:
    found = report(ran["cut"], 1)
    assert found["peer 10.77.0.1:9999"][0][0] == "ok"
    ((state, text),) = found["peer 10.77.0.1:9999 by RDMA"]
    assert state == "wrong"
    assert "introduction: " in text
    assert "no answer by RDMA, though there is one by TCP" in text


def test_a_device_without_an_address_is_noted(ran: dict[str, Completed]) -> None:
    (_, (opened, text), (state, advice)) = report(ran["no_address"])["rdma rxe1:1"]
    assert opened == "ok"
    assert "GID fe80::" in text
    assert state == "note"
    assert "link-local" in advice
    assert "ip address add, to veth1" in advice


def test_a_port_that_is_down_is_noted_and_wrong_where_rdma_is_demanded(ran: dict[str, Completed]) -> None:
    for name, state, status in (("port_down", "note", 0), ("port_down_but_wanted", "wrong", 1)):
        found = report(ran[name], status)
        ((found_state, text),) = found["rdma rxe1:1"]
        assert found_state == state
        assert text.startswith("rxe1 port 1 is DOWN (physical state: Disabled): check the cable")
        assert [each for each, _ in found["rdma"]] == [state]


def test_no_device_is_an_error_only_where_one_is_demanded(ran: dict[str, Completed]) -> None:
    found = report(ran["no_device"], 1)
    assert found["rdma"] == [("wrong", "BYTEPS_TRANSPORT is rdma: expected an RDMA device, but this machine has none")]
    assert [topic for topic in found if topic.startswith("rdma ")] == []
