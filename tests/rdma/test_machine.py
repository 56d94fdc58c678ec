"""The virtual machine: commands run in it as they would here, and its two RDMA devices work."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from rdma import image, qemu
from rdma.batch import run_all_in_vm
from rdma.machine import BOOT_LIMIT_S, MACHINE_FAILED, TEST_LIMIT_S, TIMED_OUT, Completed, run_in_vm
from rdma.verbs import pyverbs_path, why_no_pyverbs

ROOT = Path(__file__).resolve().parents[2]
IMPOSSIBLE = image.why_impossible()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no virtual machine here: {IMPOSSIBLE}"),
    pytest.mark.timeout(TEST_LIMIT_S),
]

COMMAND_LIMIT_S = 60.0
DEVICES = ("rxe0", "rxe1")

# Both need a server that listens before the client comes, and events: polling starves the one
# emulated processor.
PINGPONG = """
ibv_rc_pingpong -d rxe0 -g 1 -e -n 50 -s 10000 &
until ss -Hltn "sport = :18515" | grep -q .; do sleep 0.1; done
ibv_rc_pingpong -d rxe1 -g 1 -e -n 50 -s 10000 10.77.0.1 && wait $!
"""
WRITE_BW = """
before=$(cat /sys/class/net/veth0/statistics/rx_bytes)
ib_write_bw -d rxe0 -x 1 -F -u 20 -n 20 -s 65536 &
until ss -Hltn "sport = :18515" | grep -q .; do sleep 0.1; done
ib_write_bw -d rxe1 -x 1 -F -u 20 -n 20 -s 65536 10.77.0.1 && wait $! || exit
echo "wire: $(($(cat /sys/class/net/veth0/statistics/rx_bytes) - before))"
"""
LIST_DEVICES = "import pyverbs.device as d; print(sorted(device.name.decode() for device in d.get_device_list()))"


def shell(script: str) -> list[str]:
    return ["bash", "-c", textwrap.dedent(script)]


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share")


@pytest.fixture(scope="module")
def ran(share: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Completed]:
    """Runs everything that a single boot can show."""
    python_path = pyverbs_path(tmp_path_factory.mktemp("python"))
    commands = {
        "fails": shell("echo good; echo bad >&2; exit 7"),
        "is_killed": shell("kill -SEGV $$"),
        "tells": [sys.executable, "-c", "import os; print(os.getcwd(), os.environ['COLOUR'], os.getuid())"],
        "writes_to_tree": shell("echo x >/usr/written-by-guest"),
        "writes_to_tmp": shell("echo x >/tmp/written-by-guest && cat /tmp/written-by-guest"),
        "writes_to_share": shell(f"mkdir {share}/new && cp {share}/given {share}/new/taken"),
        "devices": ["ibv_devinfo", "-v"],
        "pingpong": shell(PINGPONG),
        "write_bw": shell(WRITE_BW),
        "pyverbs": ["env", f"PYTHONPATH={python_path}", sys.executable, "-c", LIST_DEVICES],
    }
    (share / "given").write_text("from the host")
    environment = {"COLOUR": "a 'quoted'  $blue"}
    return run_all_in_vm(commands, COMMAND_LIMIT_S, shares=[share], env=environment, folder=ROOT / "tests")


def test_status_and_output_come_back(ran: dict[str, Completed]) -> None:
    assert ran["fails"] == Completed(7, "good\n", "bad\n")
    assert ran["is_killed"].status == 128 + signal.SIGSEGV


def test_a_command_has_the_callers_environment_and_folder(ran: dict[str, Completed]) -> None:
    assert ran["tells"] == Completed(0, f"{ROOT / 'tests'} a 'quoted'  $blue 0\n", "")


def test_files_are_written_to_shares_only(ran: dict[str, Completed], share: Path) -> None:
    assert "Read-only file system" in ran["writes_to_tree"].stderr
    assert not Path("/usr/written-by-guest").exists()
    assert ran["writes_to_tmp"] == Completed(0, "x\n", "")
    assert not Path("/tmp/written-by-guest").exists()
    assert ran["writes_to_share"].status == 0, ran["writes_to_share"].describe()
    assert (share / "new" / "taken").read_text() == "from the host"


def test_both_devices_are_active_with_the_largest_mtu_and_both_addresses(ran: dict[str, Completed]) -> None:
    said = ran["devices"].stdout
    for name, address in zip(DEVICES, ("10.77.0.1", "10.77.0.2"), strict=True):
        device = said.partition(f"hca_id:\t{name}\n")[2].partition("hca_id:")[0]
        assert re.search(r"state:\s+PORT_ACTIVE", device), said
        assert re.search(r"active_mtu:\s+4096", device), said
        assert re.search(r"GID\[ *0\]:\s+fe80::", device), said
        assert re.search(rf"GID\[ *1\]:\s+::ffff:{re.escape(address)}, RoCE v2", device), said


def test_a_message_goes_from_one_device_to_the_other_and_back(ran: dict[str, Completed]) -> None:
    assert ran["pingpong"].status == 0, ran["pingpong"].describe()
    assert ran["pingpong"].stdout.count("50 iters in") == 2  # both ends


def test_what_one_device_writes_to_the_other_takes_the_wire(ran: dict[str, Completed]) -> None:
    assert ran["write_bw"].status == 0, ran["write_bw"].describe()
    counted = re.search(r"wire: (\d+)", ran["write_bw"].stdout)
    assert counted and int(counted[1]) >= 20 * 65536


def test_pyverbs_lists_the_devices(ran: dict[str, Completed]) -> None:
    if reason := why_no_pyverbs():
        pytest.skip(reason)
    assert ran["pyverbs"].stdout == f"{list(DEVICES)}\n", ran["pyverbs"].describe()


def test_a_machine_is_as_large_as_asked_for_and_ends_with_the_time_limit() -> None:
    script = "ls /sys/class/infiniband; nproc; awk '/MemTotal/ {print $2}' /proc/meminfo; sleep 600"
    ended = run_in_vm(shell(script), 15, cpus=2, memory_mib=768, topology="none")
    assert ended.status == TIMED_OUT, ended.describe()
    assert "rdma-vm: the command still ran after 15 s" in ended.stderr
    processors, kib = map(int, ended.stdout.split())  # and no device before them
    assert processors == 2
    assert 600 << 10 < kib <= 768 << 10


def test_in_a_batch_each_command_has_its_own_end() -> None:
    commands = {
        "is_too_long": shell("echo begun; sleep 600"),
        "comes_after": ["echo", "here"],
        "takes_the_guest_down": shell("echo before; echo c >/proc/sysrq-trigger; sleep 600"),
        "is_never_run": ["true"],
    }
    ended = run_all_in_vm(commands, 10, topology="none")
    assert ended["is_too_long"] == Completed(TIMED_OUT, "begun\n", "")
    assert ended["comes_after"] == Completed(0, "here\n", "")
    for name, output in (("takes_the_guest_down", "before\n"), ("is_never_run", "")):
        assert (ended[name].status, ended[name].stdout) == (MACHINE_FAILED, output)
        assert "the guest ended by itself, while the command ran" in ended[name].stderr
        assert "sysrq triggered crash" in ended[name].stderr


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (Path("/nonexistent"), "No such file or directory"),  # qemu says so
        # The guest has its own /proc.
        (Path(f"/proc/{os.getpid()}/task"), "failed: no place for /proc/"),
    ],
    ids=["qemu", "guest"],
)
def test_a_machine_that_does_not_come_up_says_why(share: Path, why: str) -> None:
    ended = run_in_vm(["true"], COMMAND_LIMIT_S, shares=[share], topology="none")
    assert ended.status == MACHINE_FAILED, ended.describe()
    assert "before the command" in ended.stderr
    assert why in ended.stderr


@pytest.fixture
def started() -> Iterator[subprocess.Popen[str]]:
    image.prepared()
    command = [sys.executable, "-m", "tests.rdma", "--topology", "none", "--", *shell("echo up; sleep 600")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_emulator_ends_with_the_process_that_started_it(started: subprocess.Popen[str]) -> None:
    assert started.stdout and started.stdout.readline() == "up\n"
    (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    assert qemu.PROGRAM.startswith(Path(f"/proc/{child}/comm").read_text().strip())
    emulator = os.pidfd_open(int(child))
    started.kill()
    ended, _, _ = select.select([emulator], [], [], BOOT_LIMIT_S)
    os.close(emulator)
    assert ended
