"""A network lab on this machine: hosts with network interfaces of given speeds.

    with Lab([200, 200, 100]) as lab:
        lab.run(0, ["iperf3", "-s", "-D"])
        lab.run(1, ["iperf3", "-c", lab.hosts[0].address])

A host is a network namespace, with a host name and optionally its own /dev/shm and IPC. Its only
interface, eth0, is a veth pair to a bridge in another namespace, so the machine's own network does
not change. A token bucket at each end of the pair limits both directions. The namespaces have no
names: if this process dies, the kernel removes them, and keeper.py ends the processes in them.

    with Lab([200, 200], impairments=Impairments(loss_percent=1, delay_ms=20)) as lab:
        lab.relay.cut(0, 1)
        lab.set_rate(1, 50)

With `impairments`, even if all of them are zero, a program takes the place of the bridge: see
relay.py.

Needs root, iproute2, util-linux and, for impairments, a C++ compiler.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import Any

from benchmarks.lab.namespaces import NEW_HOSTNAME, NEW_IPC, NEW_MOUNTS, NEW_NETWORK, Namespaces
from benchmarks.lab.offloads import send_whole_packets
from benchmarks.lab.relay import LARGEST_MTU, Impairments, Relay, why_no_relay

INTERFACE = "eth0"
UNLIMITED = math.inf
_PREFIX = "10.77.0."
_BRIDGE = "bridge0"
_KEEPER = Path(__file__).with_name("keeper.py")

# A packet before segmentation has up to 64 KiB, and the bucket must hold one.
_BURST_BYTES = 72 << 10
# As a switch would have: some 20 ms of the rate, but enough for a few segments of each of several
# senders.
_QUEUE_S = 0.02
_LEAST_QUEUE_BYTES = 512 << 10


@dataclass(frozen=True)
class Host:
    """A host of a lab."""

    number: int
    mbps: float  # speed of its link in each direction; UNLIMITED: as fast as the machine
    address: str
    name: str


class Lab:
    """A lab, which exists from `__enter__` to `__exit__`."""

    def __init__(
        self,
        rates_mbps: Sequence[float],
        *,
        mtu: int = 1500,
        own_shm: bool = True,
        impairments: Impairments | None = None,
    ) -> None:
        """Checks the arguments. `__enter__` creates the lab.

        Args:
            rates_mbps: of each host's link, in each direction; UNLIMITED: no token bucket.
            mtu: of all links, in bytes; with impairments at most 9216.
            own_shm: each host has its own /dev/shm and System V IPC, as separate machines have.
            impairments: of all paths; with them, `relay` can change each path's while the lab is there.
        """
        if not 1 <= len(rates_mbps) <= 250 or min(rates_mbps) <= 0:
            raise ValueError(f"a lab has 1 to 250 hosts with rates above 0 Mbit/s, not {list(rates_mbps)}")
        if impairments is not None and mtu > LARGEST_MTU:
            raise ValueError(f"a lab with impairments has an MTU of at most {LARGEST_MTU} bytes, not {mtu}")
        self.hosts = [Host(i, rate, f"{_PREFIX}{i + 1}", f"host{i}") for i, rate in enumerate(rates_mbps)]
        self._mtu = mtu
        self._own_shm = own_shm
        self._impairments = impairments
        self._relay: Relay | None = None
        self._namespaces: list[Namespaces] = []
        self._bridge: Namespaces | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        if reason := why_impossible() or (self._impairments is not None and why_no_relay()):
            raise RuntimeError(f"no lab on this machine: {reason}")
        try:
            self._bridge = Namespaces.create(NEW_NETWORK, self._set_up_bridge)
            for host in self.hosts:
                self._add(host)
            if self._impairments is not None:
                self._relay = Relay(_enter(self._bridge), [_port(host.number) for host in self.hosts])
                self._relay.impair(self._impairments)
            self._keeper = self._start_keeper()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def popen(self, host: int, argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Runs subprocess.Popen(argv, **options) on a host. Popen.pid is that of `argv`."""
        folder = str(options.pop("cwd", None) or Path.cwd())
        process = subprocess.Popen([*self._namespaces[host].enter_command(folder), *argv], **options)
        self._processes.append(process)
        return process

    def run(
        self, host: int, argv: Sequence[str | Path], *, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Runs subprocess.run(argv, **options) on a host.

        Raises on failure unless `check` is False.
        """
        folder = str(options.pop("cwd", None) or Path.cwd())
        return subprocess.run([*self._namespaces[host].enter_command(folder), *argv], check=check, **options)

    def enter_command(self, host: int) -> Sequence[str]:
        """Returns the words to put before a command to run it on the host."""
        return self._namespaces[host].enter_command(str(Path.cwd()))

    @property
    def relay(self) -> Relay:
        """The switch of a lab with impairments."""
        if self._relay is None:
            raise RuntimeError("this lab has a bridge: make it with impairments, for example Impairments()")
        return self._relay

    def set_rate(self, host: int, mbps: float) -> None:
        """Changes the speed of a host's link, in both directions, from now on.

        `hosts` and the environments of processes keep the rate with which the lab was made.

        Raises:
            ValueError: the rate is not above 0, or the link was made without a limit or shall have none.
        """
        if not 0 < mbps < UNLIMITED or self.hosts[host].mbps == UNLIMITED:
            raise ValueError(f"a limited link can get another rate above 0 Mbit/s, not {mbps}, host {host}")
        assert self._bridge is not None
        _feed("tc", [_limit(INTERFACE, mbps, "change")], _enter(self._namespaces[host]))
        _feed("tc", [_limit(_port(host), mbps, "change")], _enter(self._bridge))

    def queues(self, host: int) -> str:
        """Returns the output of `tc` for both ends of a host's link: configuration and counters."""
        assert self._bridge is not None
        ends = [(self._namespaces[host], INTERFACE), (self._bridge, _port(host))]
        shown = [
            subprocess.run(
                [*_enter(space), "tc", "-s", "qdisc", "show", "dev", device],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for space, device in ends
        ]
        return "".join(shown)

    def counters(self, host: int) -> tuple[int, int]:
        """Bytes that the host's interface has received and sent so far, with all headers."""
        assert self._bridge is not None
        done = subprocess.run(
            [*_enter(self._bridge), "cat", "/proc/net/dev"],
            check=True,
            capture_output=True,
            text=True,
        )
        fields = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith(f"{_port(host)}:"))
        return int(fields[9]), int(fields[1])  # the bridge's end sends what the host receives

    def _set_up_bridge(self) -> None:
        if self._impairments is not None:
            return
        _feed("ip", [f"link add dev {_BRIDGE} mtu {self._mtu} type bridge", f"link set {_BRIDGE} up"])

    def _add(self, host: Host) -> None:
        kinds = NEW_NETWORK | NEW_HOSTNAME | NEW_MOUNTS | (NEW_IPC if self._own_shm else 0)
        assert self._bridge is not None
        bridge, port = self._bridge, _port(host.number)

        def set_up() -> None:
            # The other end of the pair is made where we are and moved to the bridge's namespace.
            commands = [
                f"link add dev {INTERFACE} mtu {self._mtu} type veth peer name {port} mtu {self._mtu} "
                f"netns {bridge.path('net')}",
                f"addr add {host.address}/24 dev {INTERFACE}",
                f"link set {INTERFACE} up",
                "link set lo up",
            ]
            _feed("ip", commands)
            if host.mbps != UNLIMITED:
                _feed("tc", [_limit(INTERFACE, host.mbps)])
            if self._impairments is not None:
                # The relay knows hosts by their numbers and carries no broadcasts, so no ARP either.
                send_whole_packets(INTERFACE)
                neighbours = [other for other in self.hosts if other is not host]
                known = [f"neigh add {each.address} lladdr {_mac(each)} dev {INTERFACE}" for each in neighbours]
                _feed("ip", [f"link set {INTERFACE} address {_mac(host)}", *known])
            master = f"master {_BRIDGE}" if self._impairments is None else ""
            _feed("ip", [f"link set {port} {master} up"], _enter(bridge))
            if host.mbps != UNLIMITED:
                _feed("tc", [_limit(port, host.mbps)], _enter(bridge))
            self._set_up_machine(host)
            if self._impairments is not None:
                _receive_on_all_cores(INTERFACE)

        self._namespaces.append(Namespaces.create(kinds, set_up))

    def _set_up_machine(self, host: Host) -> None:
        subprocess.run(["hostname", host.name], check=True)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        # Shows this network namespace.
        subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
        if self._own_shm:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        descriptors = [space["net"] for space in self._namespaces]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, str(os.getpid()), *map(str, descriptors)],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C is for us
        )

    def _take_down(self) -> None:
        if self._keeper is not None:
            self._keeper.communicate()
        for process in self._processes:
            process.wait()
        if self._relay is not None:
            self._relay.close()
        for spaces in [*self._namespaces, *filter(None, [self._bridge])]:
            spaces.close()
        self._keeper, self._processes, self._namespaces, self._bridge = None, [], [], None
        self._relay = None


def why_impossible() -> str | None:
    """The reason for which this machine can have no lab; None if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if missing := [name for name in ("ip", "tc", "nsenter", "mount") if which(name) is None]:
        return f"{' and '.join(missing)} missing (Debian: iproute2, util-linux)"
    try:
        Namespaces.create(NEW_NETWORK | NEW_MOUNTS | NEW_HOSTNAME, _try_queue).close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"namespaces or tc do not work: {error}"
    return None


def host_environment(lab: Lab, host: Host, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of programs on a host."""
    return {
        **inherited,
        "LAB_HOST": str(host.number),
        "LAB_ADDRESSES": ",".join(each.address for each in lab.hosts),
        "LAB_MBPS": f"{host.mbps:g}",
        "LAB_INTERFACE": INTERFACE,
    }


def _port(number: int) -> str:
    return f"port{number}"


def _mac(host: Host) -> str:
    return f"02:00:00:00:00:{host.number:02x}"


def _enter(space: Namespaces) -> list[str]:
    return ["nsenter", f"--net={space.path('net')}", "--"]


def _limit(device: str, mbps: float, action: str = "add") -> str:
    queue_bytes = max(_LEAST_QUEUE_BYTES, math.ceil(mbps * 1e6 / 8 * _QUEUE_S))
    return f"qdisc {action} dev {device} root tbf rate {mbps}mbit burst {_BURST_BYTES} limit {queue_bytes}"


def _receive_on_all_cores(interface: str) -> None:
    """Lets the kernel spread the connections of a host over the processors.

    Else the relay, which hands packets to the interface, does all hosts' work of receiving them.
    Applies to the namespaces of the calling thread.
    """
    mask = (1 << min(os.cpu_count() or 1, 32)) - 1
    Path(f"/sys/class/net/{interface}/queues/rx-0/rps_cpus").write_text(f"{mask:x}", encoding="ascii")


def _feed(program: str, commands: Iterable[str], before: Sequence[str] = ()) -> None:
    done = subprocess.run(
        [*before, program, "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{program} {'; '.join(commands)}: {done.stderr.strip()}")


def _try_queue() -> None:
    _feed("ip", ["link add dev try0 type veth peer name try1"])
    _feed("tc", [_limit("try0", 100)])
