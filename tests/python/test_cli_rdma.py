"""byteps doctor on RDMA devices, which this machine need not have, and on other machines."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from byteps import _core
from byteps.cli import doctor, peer, rdma
from byteps.cli.finding import Finding
from byteps.config import Config
from byteps.errors import InvalidArgumentError, PeerLostError

ADDRESS = "10.0.0.1"
_LIMIT_S = 60.0
GID = {"index": 3, "gid": "::ffff:10.0.0.1", "kind": "RoCE v2", "interface": "eth0"}


@pytest.fixture(autouse=True)
def a_home_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("byteps.config.folders_of_user", lambda _: (str(tmp_path / "byteps"),))


def port(device: str = "mlx5_0", **changes: Any) -> dict[str, Any]:
    return {
        "device": device,
        "port": 1,
        "is_ethernet": True,
        "state": "ACTIVE",
        "physical": "LinkUp",
        "mbps": 100_000,
        "numa_node": 0,
        "lid": 0,
        "interface": "eth0",
        "gids": [GID],
        "why_not": "",
        **changes,
    }


def trial(**changes: Any) -> dict[str, Any]:
    return {
        "gid": "::ffff:10.0.0.1 (RoCE v2, index 3)",
        "gid_index": 3,
        "mtu_bytes": 4096,
        "interface": "eth0",
        "on_demand_paging": False,
        "why_no_connections": "",
        "why_no_memory": "",
        **changes,
    }


@dataclass
class Machine:
    """A machine with RDMA devices as _core reports it. Rails are all usable ports unless set."""

    monkeypatch: pytest.MonkeyPatch
    ports: list[dict[str, Any]] = field(default_factory=lambda: [port()])
    rails: list[tuple[str, int]] | Exception | None = None
    trials: dict[str, dict[str, Any] | Exception] = field(default_factory=dict)
    library: str = ""

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(_core, "rdma_ports", lambda: self.ports)
        self.monkeypatch.setattr(_core, "rdma_library", lambda: self.library)
        self.monkeypatch.setattr(_core, "rdma_rails", self._rails)
        self.monkeypatch.setattr(_core, "try_rdma_port", self._try)
        self.monkeypatch.setitem(sys.modules, "pyverbs", None)
        self.limit_memory(resource.RLIM_INFINITY)

    def limit_memory(self, limit: int, *, may_lock_anything: bool = False) -> None:
        self.monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        self.monkeypatch.setattr(rdma, "_may_lock_anything", lambda: may_lock_anything)

    def examine(self, **environ: str) -> list[Finding]:
        return list(rdma.examine(Config.parse(environ), ADDRESS))

    def _rails(self, _config: _core.NodeConfig, address: str) -> list[tuple[str, int]]:
        assert address == ADDRESS
        if isinstance(self.rails, Exception):
            raise self.rails
        usable = [(each["device"], each["port"]) for each in self.ports if not each["why_not"]]
        return usable if self.rails is None else self.rails

    def _try(self, _config: _core.NodeConfig, device: str, _port: int, _address: str) -> dict[str, Any]:
        outcome = self.trials.get(device, trial())
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def of(findings: list[Finding], topic: str) -> list[tuple[str, str]]:
    return [(finding.state, finding.text) for finding in findings if finding.topic == topic]


def test_no_device_is_no_more_than_the_line_on_transports(machine: Machine) -> None:
    machine.ports = []
    assert machine.examine() == []
    (finding,) = machine.examine(BYTEPS_TRANSPORT="rdma")
    assert (finding.state, finding.topic) == ("wrong", "rdma")


def test_a_good_machine_has_no_note(machine: Machine) -> None:
    findings = machine.examine()
    assert {finding.state for finding in findings} == {"ok"}
    facts, opened = of(findings, "rdma mlx5_0:1")
    expected = "RoCE on eth0, ACTIVE (LinkUp), 100 Gbit/s, NUMA node 0, GIDs 3: ::ffff:10.0.0.1 (RoCE v2)"
    assert facts == ("ok", expected)
    assert opened[1].startswith("opened: GID ::ffff:10.0.0.1 (RoCE v2, index 3), packets of 4096 bytes")
    assert of(findings, "rdma pyverbs") == [("ok", "not installed (not needed)")]


@pytest.mark.parametrize(("transport", "state"), [("auto", "note"), ("rdma", "wrong")])
def test_what_hinders_rdma_is_wrong_only_where_it_is_demanded(machine: Machine, transport: str, state: str) -> None:
    machine.ports = [port(), port("mlx5_1", why_not="mlx5_1 port 1 is DOWN")]
    machine.trials["mlx5_0"] = PeerLostError("no such thing")
    findings = machine.examine(BYTEPS_TRANSPORT=transport)
    assert of(findings, "rdma mlx5_0:1")[1] == (state, "cannot be opened: no such thing")
    assert of(findings, "rdma mlx5_1:1") == [(state, "mlx5_1 port 1 is DOWN")]
    machine.rails = PeerLostError("no rails")
    assert of(machine.examine(BYTEPS_TRANSPORT=transport), "rdma") == [(state, "no rails")]
    machine.library = "no libibverbs"
    assert of(machine.examine(BYTEPS_TRANSPORT=transport), "rdma") == [(state, "no libibverbs")]


@pytest.mark.parametrize(
    ("changes", "environ", "why"),
    [
        ({"is_ethernet": False}, {}, "mlx5_0 is RoCE, and only one kind is used"),
        ({"mbps": 25_000}, {}, "its speed is not that of mlx5_0"),
        ({"numa_node": 1}, {}, "on the NUMA node of this process"),
        ({}, {"BYTEPS_RDMA_DEVICES": "mlx5_0"}, "BYTEPS_RDMA_DEVICES does not name it"),
    ],
)
def test_a_port_that_is_not_used_says_why(
    machine: Machine, changes: dict[str, Any], environ: dict[str, str], why: str
) -> None:
    machine.ports = [port(), port("mlx5_1", **changes)]
    machine.rails = [("mlx5_0", 1)]
    _, (state, text) = of(machine.examine(**environ), "rdma mlx5_1:1")
    assert state == "ok"
    assert text.startswith("not used: ")
    assert why in text


@pytest.mark.parametrize(
    ("gid", "changes", "advice"),
    [
        ({}, {"mtu_bytes": 1024}, "ip link set eth0 mtu 4200"),
        ({"gid": "fe80::1"}, {}, "the GID is link-local, which no router forwards"),
        ({"kind": "RoCE v1"}, {}, "the GID is of RoCE v1, which no router forwards"),
    ],
)
def test_what_works_but_not_well_is_noted(
    machine: Machine, gid: dict[str, Any], changes: dict[str, Any], advice: str
) -> None:
    machine.ports = [port(gids=[GID | gid])]
    machine.trials["mlx5_0"] = trial(**changes)
    _, _, (state, text) = of(machine.examine(BYTEPS_TRANSPORT="rdma"), "rdma mlx5_0:1")
    assert state == "note"
    assert advice in text


@pytest.mark.parametrize(
    ("limit", "privileged", "changes", "state", "text"),
    [
        (resource.RLIM_INFINITY, False, {}, "ok", "no limit"),
        (1 << 62, False, {}, "ok", f"{1 << 52} KiB"),
        (8 << 20, True, {}, "ok", "8192 KiB, which does not limit this process"),
        (8 << 20, False, {"on_demand_paging": True}, "ok", "8192 KiB, which is enough"),
        (8 << 20, False, {}, "note", "8192 KiB: RDMA locks about the size of the model"),
        (64 << 10, False, {"why_no_memory": "registering: refused"}, "note", "registering: refused"),
    ],
)
def test_the_limit_of_locked_memory_is_judged(
    machine: Machine, limit: int, privileged: bool, changes: dict[str, Any], state: str, text: str
) -> None:
    machine.limit_memory(limit, may_lock_anything=privileged)
    machine.trials["mlx5_0"] = trial(**changes)
    ((found_state, found),) = of(machine.examine(), "locked memory")
    assert found_state == state
    assert found.startswith(text)


class FakeContext:
    """A pyverbs context with one GID, which the test sets."""

    gid = "0000:0000:0000:0000:0000:ffff:0a00:0001"

    def __init__(self, name: str) -> None:
        assert name == "mlx5_0"

    def __enter__(self) -> FakeContext:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query_gid_table(self, _most: int) -> list[Any]:
        return [types.SimpleNamespace(port_num=1, gid_index=3, gid_str=lambda: self.gid, gid_type=2)]

    def query_device(self) -> Any:
        return types.SimpleNamespace(fw_version="28.39", max_qp=7, max_mr=8)


@pytest.fixture
def pyverbs(machine: Machine) -> Iterator[None]:
    device = types.ModuleType("pyverbs.device")
    device.Context = FakeContext  # type: ignore[attr-defined]
    device.get_device_list = lambda: [types.SimpleNamespace(name=b"mlx5_0")]  # type: ignore[attr-defined]
    error = types.ModuleType("pyverbs.pyverbs_error")
    error.PyverbsError = RuntimeError  # type: ignore[attr-defined]
    for module in (types.ModuleType("pyverbs"), device, error):
        machine.monkeypatch.setitem(sys.modules, module.__name__, module)
    yield


@pytest.mark.usefixtures("pyverbs")
def test_pyverbs_agrees_and_adds_what_it_knows(machine: Machine) -> None:
    expected = "mlx5_0: the same GIDs (1); firmware 28.39, at most 7 queue pairs and 8 memory regions"
    assert of(machine.examine(), "rdma pyverbs") == [("ok", expected)]


@pytest.mark.usefixtures("pyverbs")
def test_where_pyverbs_disagrees_a_note_says_so(machine: Machine) -> None:
    machine.monkeypatch.setattr(FakeContext, "gid", "fe80::1")
    ((state, text),) = of(machine.examine(), "rdma pyverbs")
    assert (state, text.startswith("mlx5_0: 1 GIDs, of which 0 are in sysfs")) == ("note", True)
    machine.ports.append(port("mlx5_1"))
    (state, text), _ = of(machine.examine(), "rdma pyverbs")
    assert (state, text.startswith("mlx5_1: in sysfs, but libibverbs has no driver")) == ("note", True)


@pytest.mark.parametrize("where", ["", "host", "host:", "host:99999", ":9000", "host:٣"])
def test_where_a_peer_is_has_to_be_a_host_and_a_port(where: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected HOST:PORT"):
        peer.check(Config.parse({}), where)


def test_hosts_and_ports_are_told_apart() -> None:
    assert peer.split("10.0.0.1:9000", needs_host=True) == ("10.0.0.1", 9000)
    assert peer.split("[fe80::1%eth0]:9000", needs_host=True) == ("fe80::1%eth0", 9000)
    assert peer.split("9000", needs_host=False) == ("", 9000)


def no_check(*_: object) -> dict[str, Any]:
    speed = {"round_trip_us": 12.4, "bytes_per_s": 1.25e9}
    rail = {"own": "mlx5_0 port 1", "other": "rdma 10.0.0.2:7 (mlx5_0 port 1)", "failure": "", **speed}
    return {
        "host": "b",
        "tcp": speed,
        "why_no_rdma": "",
        "rdma_is_absent": False,
        "rails": [rail, rail | {"failure": "introduction: no answer"}],
    }


def test_each_card_of_a_way_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "check_peer", no_check)
    tcp, good, bad = peer.check(Config.parse({}), "127.0.0.1:9")
    speed = "round trip 12 us, about 10 Gbit/s in each direction on one connection"
    assert (tcp.state, tcp.text) == ("ok", f"b by TCP from 127.0.0.1: {speed}")
    assert (good.state, good.text) == ("ok", f"mlx5_0 port 1 to rdma 10.0.0.2:7 (mlx5_0 port 1): {speed}")
    assert (bad.state, bad.text) == ("wrong", "mlx5_0 port 1: introduction: no answer")


@pytest.mark.parametrize(
    ("is_absent", "transport", "state"), [(True, "auto", "note"), (True, "rdma", "wrong"), (False, "auto", "wrong")]
)
def test_a_way_without_rdma_is_wrong_unless_there_is_none_to_use(
    monkeypatch: pytest.MonkeyPatch, is_absent: bool, transport: str, state: str
) -> None:
    answer = no_check() | {"why_no_rdma": "b has no RDMA: off", "rdma_is_absent": is_absent, "rails": []}
    monkeypatch.setattr(_core, "check_peer", lambda *_: answer)
    _, finding = peer.check(Config.parse({"BYTEPS_TRANSPORT": transport}), "127.0.0.1:9")
    assert (finding.state, finding.text) == (state, "not tried: b has no RDMA: off")


def test_two_doctors_talk_by_tcp() -> None:
    config = Config.parse({"BYTEPS_TRANSPORT": "tcp", "BYTEPS_TIMEOUT_S": "30"})
    listener = _core.PeerListener(config.to_node_config(), "127.0.0.1", 0)
    assert listener.why_no_rdma == "BYTEPS_TRANSPORT is tcp"
    tcp, by_rdma = peer.check(config, listener.address)
    assert (tcp.state, by_rdma.state) == ("ok", "note")
    assert listener.next(30.0).startswith("tcp 127.0.0.1:")
    other = Config.parse({"BYTEPS_SECRET": "0123456789abcdef0123456789abcdef"})
    (refused,) = peer.check(other, listener.address)
    assert refused.state == "wrong"
    assert "another secret" in refused.text


def test_a_listener_ends_when_nobody_comes(capsys: pytest.CaptureFixture[str]) -> None:
    config = Config.parse({"BYTEPS_TRANSPORT": "tcp", "BYTEPS_START_TIMEOUT_S": "0.2"})
    assert peer.listen(config, "0") == 1
    out = capsys.readouterr().out
    assert "byteps doctor --peer 127.0.0.1:" in out
    assert "nobody has connected for 0.2 s" in out


def test_listening_where_rdma_is_demanded_and_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Listener:
        address = "127.0.0.1:9"
        why_no_rdma = "no device"

        def __init__(self, *_: object) -> None:
            self.events = iter(["tcp 127.0.0.1:8: 42 frames echoed"])

        def next(self, _timeout_s: float) -> str:
            for event in self.events:
                return event
            raise KeyboardInterrupt

    monkeypatch.setattr(_core, "PeerListener", Listener)
    assert peer.listen(Config.parse({}), "0") == 0
    assert peer.listen(Config.parse({"BYTEPS_TRANSPORT": "rdma"}), "0") == 1
    assert "listening by TCP only: no device\ntcp 127.0.0.1:8: 42 frames echoed\n" in capsys.readouterr().out


def test_waiting_for_peers_lets_other_threads_run() -> None:
    config = Config.parse({"BYTEPS_TRANSPORT": "tcp", "BYTEPS_TIMEOUT_S": "30"})
    listener = _core.PeerListener(config.to_node_config(), "127.0.0.1", 0)
    checking = threading.Thread(target=peer.check, args=(config, listener.address))
    checking.start()
    assert "frames echoed" in listener.next(60.0)
    checking.join()


def test_a_check_ends_with_ctrl_c() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(_LIMIT_S)
        doctor = [sys.executable, "-m", "byteps.cli", "doctor", "--peer", f"127.0.0.1:{silent.getsockname()[1]}"]
        command = ["env", "--default-signal=INT", *doctor]  # background processes ignore it
        environment = {"BYTEPS_TIMEOUT_S": str(10 * _LIMIT_S), "BYTEPS_TRANSPORT": "tcp"}
        with subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=_LIMIT_S)
        connection.close()
    assert (process.returncode, err) == (130, b"")


def test_the_report_has_a_line_for_each_transport() -> None:
    assert {"transport inproc", "transport shm", "transport tcp", "transport rdma"} <= {
        finding.topic for finding in doctor.examine({})
    }
