"""Runs the same program under every launcher."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

DEADLINE_S = 60
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
import numpy as np
import byteps

byteps.init()
total = byteps.push_pull(np.full(1000, byteps.rank() + 1, np.float32), average=False, name="x")
size = byteps.size()
assert np.all(total == size * (size + 1) / 2), total
assert byteps.is_homogeneous() and byteps.cross_size() * byteps.local_size() == size
assert byteps.cross_rank() * byteps.local_size() + byteps.local_rank() == byteps.rank()
os.write(1, f"rank {byteps.rank()} of {size}\\n".encode())  # in one piece: some launchers let ranks share a stream
byteps.shutdown()
"""
BPSLAUNCH = (sys.executable, "-m", "byteps.launcher.launch")
OURS = ("BYTEPS_", "DMLC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def start(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    limits = {"BYTEPS_START_TIMEOUT_S": "30", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(word) for word in command],
        env={**inherited, **limits, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> tuple[list[int], str, str]:
    """Exit codes, and what all wrote on their two streams. No process is left, whatever happens."""
    out, err = "", ""
    try:
        for process in processes:
            outputs = process.communicate(timeout=DEADLINE_S)
            out, err = out + outputs[0], err + outputs[1]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return [process.returncode for process in processes], out, err


def ranks_in(out: str) -> list[str]:
    return sorted(line[line.index("rank ") :] for line in out.splitlines() if "rank " in line)


def expect_ranks(count: int, *processes: subprocess.Popen[str]) -> None:
    codes, out, err = finish(*processes)
    assert codes == [0] * len(processes), out + err
    assert ranks_in(out) == [f"rank {rank} of {count}" for rank in range(count)], out + err


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_python_alone(program: Path) -> None:
    expect_ranks(1, start([sys.executable, program]))


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_bpslaunch(program: Path, servers: int) -> None:
    expect_ranks(2, start([*BPSLAUNCH, "--nproc-per-node", "2", "--servers", str(servers), program]))


def test_bpslaunch_of_one_rank_and_a_server(program: Path) -> None:
    expect_ranks(1, start([*BPSLAUNCH, "--servers", "1", program]))


def test_inside_a_clone_that_was_not_built(program: Path, tmp_path: Path) -> None:
    """Servers use the installed package, as workers do. Importing a clone raises an error."""
    clone = tmp_path / "clone"
    (clone / "byteps").mkdir(parents=True)
    for path in (ROOT / "byteps").glob("*.py"):
        shutil.copy(path, clone / "byteps")
    (clone / "byteps" / "server.py").write_text("raise SystemExit('the server of the clone')")
    bpslaunch = Path(sys.executable).with_name("bpslaunch")
    expect_ranks(1, start([bpslaunch, "--servers", "1", program], cwd=clone))
    as_installed = "f for f in sys.meta_path if 'editable' in f.__module__"
    only_here = f"import sys; [sys.meta_path.remove(f) for f in [{as_installed}]]; import byteps; byteps.init()"
    codes, _, err = finish(start([sys.executable, "-c", only_here], cwd=clone))
    assert codes == [1]
    assert "has no native module byteps._core: this is a clone that was not built. Run `make build`" in err


def test_bpslaunch_on_two_machines(program: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    flags = ["--nnodes", "2", "--nproc-per-node", "2", "--servers", "1", "--secret-file", key]
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    expect_ranks(4, *(start([*BPSLAUNCH, *flags, *meeting, "--node-rank", str(rank), program]) for rank in (1, 0)))


def test_the_socket_of_bpslaunch_serves_a_second_job_too(tmp_path: Path) -> None:
    between = """
byteps.init()
rank = byteps.rank()
byteps.shutdown()
if rank == 0: Path("left").touch()  # only now has the first scheduler closed its copy
while not Path("left").exists(): time.sleep(0.01)
byteps.init()
"""
    path = tmp_path / "twice.py"
    path.write_text("import time\nfrom pathlib import Path\n" + PROGRAM.replace("\nbyteps.init()\n", between))
    expect_ranks(2, start([*BPSLAUNCH, "--nproc-per-node", "2", path], cwd=tmp_path))


def test_ctrl_c_ends_a_job_that_communicates(tmp_path: Path) -> None:
    path = tmp_path / "forever.py"
    loop = "while True: byteps.push_pull(np.ones(1000, np.float32), name='x')"
    path.write_text(f"import numpy as np, os, byteps\nbyteps.init()\nprint(os.getpid(), flush=True)\n{loop}")
    job = start([*BPSLAUNCH, "--nproc-per-node", "2", "--servers", "1", path])
    assert job.stdout is not None
    pids = [int(job.stdout.readline().split()[1]) for _ in range(2)]
    job.send_signal(signal.SIGINT)
    codes, _, err = finish(job)
    assert codes == [130], err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


ENDS_EARLY = """
import sys
import numpy as np
import byteps

byteps.init()
data = np.ones(1000, np.float32)
for _ in range(2):
    byteps.push_pull(data, name="x")
if byteps.rank() == GUILTY:
    END
byteps.push_pull(data, name="x")
byteps.push_pull(data, name="y")
"""


AT_LAST = "finally: byteps.shutdown()"


@pytest.mark.parametrize(
    ("end", "guilty", "code", "cause"),
    [
        ("{}['label']", 0, 1, "KeyError: 'label'"),
        ("{}['label']", 1, 1, "KeyError: 'label'"),
        ("sys.exit(7)", 1, 7, "sys.exit(7)"),
        (f"try: {{}}['label']\n    {AT_LAST}", 0, 1, "KeyError: 'label'"),
        (f"try: sys.exit(7)\n    {AT_LAST}", 1, 7, "sys.exit(7)"),
    ],
)
def test_the_first_cause_ends_the_job(end: str, guilty: int, code: int, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(ENDS_EARLY.replace("END", end).replace("GUILTY", str(guilty)))
    how = "has left the job after" if AT_LAST in end else "ended by"
    codes, _, err = finish(start([*BPSLAUNCH, "--nproc-per-node", "3", "--servers", "1", path]))
    assert codes == [code], err
    verdict = [line for line in err.splitlines() if line.startswith("bpslaunch: r")]
    assert [line for line in verdict if f"r{guilty} (host " in line and f"exited with code {code}: " in line], err
    assert cause in verdict[-1]
    for line in err.splitlines():
        if "PeerLostError: " in line:
            assert f"rank {guilty} (host " in line and f") {how} {cause}" in line, err
    assert err.count("Traceback") <= 3, "each rank's once"


def test_ranks_that_disagree_end_the_job_by_what_both_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    other = "byteps.push_pull(data.astype(np.float64), name='x')"
    path.write_text(ENDS_EARLY.replace("END", other).replace("GUILTY", "2"))
    codes, _, err = finish(start([*BPSLAUNCH, "--nproc-per-node", "3", "--servers", "1", path]))
    assert codes == [1], err
    verdicts = [line for line in err.splitlines() if line.startswith("bpslaunch: r")]
    verdict = next(line for line in verdicts if " exited with code " in line)  # on a slow machine others come before
    assert "InvalidArgumentError: tensor 'x'" in verdict and "float64" in verdict and "rank 2 (host " in verdict, err


def test_torchrun(program: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    expect_ranks(2, start([*torchrun, "--master-port", str(free_port()), program]))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun(program: Path) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    expect_ranks(2, start([*mpirun, sys.executable, program]))


def test_roles_of_byteps_started_by_hand(program: Path) -> None:
    job = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "NVIDIA_VISIBLE_DEVICES": "0,1",
    }
    workers = [start([*BPSLAUNCH, program], {**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(i)}) for i in (0, 1)]
    others = [start([*BPSLAUNCH, program], {**job, "DMLC_ROLE": role}) for role in ("server", "scheduler")]
    expect_ranks(4, *workers, *others)


# What is to be imported may be where only root can read.
BECOME = """
import os, numpy, byteps
from byteps import _core
from byteps.version import package_version
byteps.init, byteps.push_pull, package_version()  # the other user may not reach what is imported later
os.setuid(int(os.environ["TEST_UID"]))
"""
TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "0"}
SRUN = {
    **{"SLURM_JOB_ID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"},
    **{"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"},
}
BY_HAND = {
    **{"DMLC_NUM_WORKER": "2", "BYTEPS_HOST_SCHEDULER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"},
    "DMLC_PS_ROOT_PORT": "0",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.parametrize(
    ("job", "rank_names"),
    [
        (TORCHRUN, ("RANK", "LOCAL_RANK")),
        (MPIRUN, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")),
        (SRUN, ("SLURM_PROCID", "SLURM_LOCALID")),
        (BY_HAND, ("DMLC_WORKER_ID",)),
    ],
)
def test_another_user_of_the_machine_cannot_join(
    job: Mapping[str, str], rank_names: Sequence[str], tmp_path: Path
) -> None:
    """Nor with all that the environment says, and as the first one to come."""
    path = tmp_path / "program.py"
    path.write_text(BECOME + PROGRAM)
    number = str(free_port())
    env = {name: number if text == "0" else text for name, text in job.items()}
    # Readable for the other user.
    others_home = Path("/tmp") / f"byteps-test-{secrets.token_hex(8)}"

    def start_rank(rank: int, uid: int, home: Path) -> subprocess.Popen[str]:
        own = {"TEST_UID": str(uid), "XDG_STATE_HOME": str(home)} | dict.fromkeys(rank_names, str(rank))
        return start([sys.executable, path], {**env, **own})

    first = start_rank(0, 0, tmp_path / "state")
    stranger = start_rank(1, 65534, others_home)
    try:
        assert first.stderr is not None
        assert any("did not prove the job's secret: it has another secret" in line for line in first.stderr)
        expect_ranks(2, first, start_rank(1, 0, tmp_path / "state"))
    finally:
        stranger.kill()
        codes, out, _ = finish(stranger)
        shutil.rmtree(others_home, ignore_errors=True)
    assert codes in ([-signal.SIGKILL], [1])
    assert out == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_host_whose_name_means_nothing_yet_is_waited_for(program: Path, tmp_path: Path) -> None:
    hosts, switch = tmp_path / "hosts", tmp_path / "nsswitch.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    switch.write_text("hosts: files\n")
    mount = 'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/nsswitch.conf && shift && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, hosts, switch, sys.executable, program]
    env = {
        **BY_HAND,
        "DMLC_PS_ROOT_URI": "rank-0.test",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_SECRET": secrets.token_hex(16),
    }
    second = start(command, {**env, "DMLC_WORKER_ID": "1"})
    assert second.stderr is not None
    assert 'waiting for the scheduler\'s host since 5 s: host "rank-0.test" cannot be' in second.stderr.readline()
    with hosts.open("a") as file:
        file.write("127.0.0.1 rank-0.test\n")
    expect_ranks(2, second, start(command, {**env, "DMLC_WORKER_ID": "0"}))


def test_ten_jobs_at_once(program: Path) -> None:
    jobs = [start([*BPSLAUNCH, "--nproc-per-node", "2", program]) for _ in range(10)]
    codes, out, err = finish(*jobs)
    assert codes == [0] * 10, out + err
    assert ranks_in(out) == ["rank 0 of 2"] * 10 + ["rank 1 of 2"] * 10


def test_a_server_without_scheduler_fails_with_one_line() -> None:
    job = {
        "DMLC_ROLE": "server",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "BYTEPS_START_TIMEOUT_S": "1",
    }
    codes, _, err = finish(start([sys.executable, "-m", "byteps.server"], job))
    assert codes == [1]
    assert err.startswith("byteps server: ")
    assert job["DMLC_PS_ROOT_PORT"] in err
    assert len(err.splitlines()) == 1


def test_settings_of_a_server_that_cannot_be_used() -> None:
    codes, _, err = finish(start([sys.executable, "-m", "byteps.server"], {"DMLC_ROLE": "server"}))
    assert codes == [2]
    assert "DMLC_PS_ROOT_URI is not set" in err


def test_bench_starts_a_job_of_its_own() -> None:
    bench = [sys.executable, "-m", "byteps.cli", "bench", "push_pull"]
    flags = ["--size", "64K", "--iters", "3", "--tensors", "2"]
    codes, out, err = finish(start([*bench, *flags]))
    assert codes == [0], err
    head, row = (line.split("  ") for line in out.splitlines())
    assert [word.strip() for word in head if word][:4] == ["ranks", "servers", "tensors", "bytes each"]
    assert [word.strip() for word in row if word][:4] == ["2", "0", "2", "65536"]
