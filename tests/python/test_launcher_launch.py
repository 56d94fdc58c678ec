"""bpslaunch as users call it: environment of its processes, errors of its command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from byteps.launcher.child import STDERR, STDOUT
from byteps.launcher.job import Job, commands_of, make_job, processes_for
from byteps.launcher.launch import warn_of_outer_launcher
from byteps.launcher.options import AUTO, parse_options
from byteps.launcher.output import Console
from byteps.launcher.topology import Machine

from byteps.config import Config

DEADLINE_S = 60
SECRET = "0123456789abcdef"
TELL = "import json, os; print(json.dumps(dict(os.environ)))"
ACCEPT = """
import os, socket
listener = socket.socket(fileno=int(os.environ["BYTEPS_SCHEDULER_FD"]))
port = int(os.environ["DMLC_PS_ROOT_PORT"])
client = socket.create_connection(("127.0.0.1", port))
listener.accept()
print("port", port)
"""


Finished = subprocess.CompletedProcess[str]


def bpslaunch(*flags: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Finished:
    prefixes = ("DMLC_", "BYTEPS_", "OMP_", "NVIDIA_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return subprocess.run(
        [sys.executable, "-m", "byteps.launcher.launch", *flags],
        env=inherited | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def told(finished: Finished) -> dict[str, dict[str, str]]:
    """Label of each process -> its environment, as TELL prints it."""
    assert finished.returncode == 0, finished.stderr
    return {line[1 : line.index("]")]: json.loads(line.partition(" ")[2]) for line in finished.stdout.splitlines()}


def test_each_worker_has_its_place_and_only_rank_0_the_socket() -> None:
    environments = told(bpslaunch("--nproc-per-node", "2", "--", sys.executable, "-c", TELL))
    configs = {label: Config.parse(env) for label, env in environments.items()}
    assert {label: (config.rank, config.size) for label, config in configs.items()} == {"r0": (0, 2), "r1": (1, 2)}
    assert configs["r0"].node_fields()["scheduler_fd"] >= 3
    assert configs["r1"].scheduler_fd == -1
    assert configs["r0"].scheduler_ports == configs["r1"].scheduler_ports
    assert configs["r0"].secret == configs["r1"].secret
    assert len(configs["r0"].secret) == 64
    assert environments["r0"]["OMP_NUM_THREADS"] == environments["r1"]["OMP_NUM_THREADS"]


def test_what_is_printed_of_a_job_has_no_secret(tmp_path: Path) -> None:
    described, options = job("--nproc-per-node", "2", "x")
    machine = Machine((frozenset({0}),), 1)
    shown = repr(described) + repr(list(commands_of(described, options, machine, tmp_path)))
    assert described.env["BYTEPS_SECRET"] not in shown


def test_two_jobs_share_neither_secret_nor_name() -> None:
    first, second = (told(bpslaunch("--", sys.executable, "-c", TELL))["r0"] for _ in range(2))
    for name in ("BYTEPS_SECRET", "BYTEPS_JOB_ID"):
        assert first[name] != second[name]


def test_the_socket_listens_where_the_others_look_for_it() -> None:
    finished = bpslaunch("--", sys.executable, "-c", ACCEPT)
    assert finished.returncode == 0, finished.stderr
    assert re.fullmatch(r"\[r0\] port \d+\n", finished.stdout)


def test_a_script_runs_with_this_python_and_a_module_as_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    expected = f"[r0] {sys.executable} ['--lr', '0.1']\n"
    assert bpslaunch("train.py", "--lr", "0.1", cwd=tmp_path).stdout == expected
    assert bpslaunch("-m", "train", "--lr", "0.1", cwd=tmp_path).stdout == expected


def test_logs_are_copied_by_local_rank(tmp_path: Path) -> None:
    both = "import sys; print('out'); print('err', file=sys.stderr)"
    flags = ("--nproc-per-node", "2", "--log-dir", str(tmp_path), "--tee", "0:3,1:1")
    finished = bpslaunch(*flags, "--", sys.executable, "-c", both, env={"BYTEPS_JOB_ID": "job"})
    assert sorted(finished.stdout.splitlines()) == ["[r0] out", "[r1] out"]
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.log")}
    assert files == {"job/r0/stdout.log": "out\n", "job/r0/stderr.log": "err\n", "job/r1/stdout.log": "out\n"}


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ((), 2, "no command"),
        (("--nproc-per-node", "0", "x"), 2, "expected a whole number from 1"),
        (("--tee", "3", "x"), 2, "--tee needs --log-dir"),
        (("--log-dir", "d", "--tee", "x:3", "x"), 2, "expected 0 to 3, or a list"),
        (("--nnodes", "2", "x"), 2, "expected --node-rank, --master-addr, --master-port, --secret-file"),
        (("--master-addr", "no-such-host.invalid", "x"), 2, "--master-addr no-such-host.invalid"),
        (("--master-addr", "192.0.2.77", "x"), 2, "cannot listen for the scheduler on 192.0.2.77"),
        (("--secret-file", "/nonexistent", "x"), 2, "BYTEPS_SECRET_FILE='/nonexistent': No such file"),
        (("--", "no-such-program"), 127, "no-such-program: No such file"),
    ],
)
def test_faults_of_the_command_line(flags: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    finished = bpslaunch(*flags, cwd=tmp_path)
    assert finished.returncode == code
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_role_that_is_none_is_refused() -> None:
    finished = bpslaunch("true", env={"DMLC_ROLE": "wroker"})
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "DMLC_ROLE='wroker': expected one of worker, server, scheduler" in finished.stderr


def test_the_version_is_told() -> None:
    assert bpslaunch("--version").stdout == f"bpslaunch of byteps {metadata.version('byteps')}\n"


def test_logs_that_cannot_be_written_start_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finished = bpslaunch("--log-dir", "file", "--", "touch", "started", cwd=tmp_path)
    assert finished.returncode == 2
    assert "--log-dir: cannot write file/" in finished.stderr and "Not a directory" in finished.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("flags", "env", "warns"),
    [
        ((), {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, True),
        ((), {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, False),
        ((), {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, False),
        (("--nnodes", "1"), {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, False),
    ],
)
def test_jobs_of_their_own_under_mpirun_are_warned_of(
    flags: tuple[str, ...], env: dict[str, str], warns: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    warn_of_outer_launcher(parse_options([*flags, "true"]), env, Console())
    assert (
        "mpirun has started 4 processes, and each bpslaunch starts a separate job" in capfd.readouterr().err
    ) == warns


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2,3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_auto_is_a_process_for_each_gpu_or_core(env: dict[str, str], count: int) -> None:
    assert parse_options(["--nproc-per-node", "auto", "true"]).nproc_per_node == AUTO
    assert processes_for(env, Machine((frozenset(range(8)),), 8)) == count


def test_a_port_in_use_is_said_so() -> None:
    port = "import socket, subprocess, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
    relaunch = "; sys.exit(subprocess.call([sys.executable, '-m', 'byteps.launcher.launch', '--master-port', "
    finished = subprocess.run(
        [sys.executable, "-c", f"{port}{relaunch}str(s.getsockname()[1]), 'x']))"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert finished.returncode == 2
    assert "Address already in use" in finished.stderr


BYTEPS_WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_WORKER_ID": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


def test_byteps_variables_alone_start_a_worker_for_each_device() -> None:
    env = {**BYTEPS_WORKER, "NVIDIA_VISIBLE_DEVICES": "0,1"}
    configs = {label: Config.parse(env) for label, env in told(bpslaunch(sys.executable, "-c", TELL, env=env)).items()}
    assert {label: (config.rank, config.size) for label, config in configs.items()} == {"r2": (2, 4), "r3": (3, 4)}
    assert not configs["r2"].host_scheduler


def test_one_worker_machine_needs_no_scheduler_process() -> None:
    env = {**BYTEPS_WORKER, "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    config = Config.parse(told(bpslaunch(sys.executable, "-c", TELL, env=env))["r0"])
    assert (config.size, config.num_servers, config.host_scheduler) == (2, 0, True)
    for role in ("server", "scheduler"):
        finished = bpslaunch(env={**env, "DMLC_ROLE": role})
        assert (finished.returncode, finished.stdout) == (0, "")
        assert f"byteps {role}: not needed for a single worker machine" in finished.stderr


def test_settings_that_cannot_be_used_stop_the_launch() -> None:
    finished = bpslaunch(sys.executable, "-c", TELL, env={**BYTEPS_WORKER, "DMLC_WORKER_ID": "2"})
    assert finished.returncode == 2
    assert "DMLC_WORKER_ID=2: expected less than 2" in finished.stderr
    assert finished.stdout == ""


def job(*flags: str, **env: str) -> tuple[Job, Any]:
    options = parse_options([*flags, "train"])
    return make_job(options, env), options


def test_servers_are_dealt_to_the_machines_in_turn(tmp_path: Path) -> None:
    flags = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "9000", "--servers", "3")
    second, options = job(*flags, "--node-rank", "1", "--nproc-per-node", "2", BYTEPS_SECRET=SECRET)
    commands = list(commands_of(second, options, Machine((frozenset({0}),), 1), tmp_path))
    assert [command.label for command in commands] == ["r2", "r3", "s1"]
    assert second.scheduler is None
    server = Config.parse(commands[-1].env)
    assert (server.role, server.size, server.num_servers, server.scheduler_ports) == ("server", 4, 3, (9000,))
    assert commands[-1].is_server


def test_machines_of_a_job_agree_on_its_name() -> None:
    flags = ("--nnodes", "3", "--master-addr", "127.0.0.1", "--master-port", "9000")
    jobs = [job(*flags, "--node-rank", rank, BYTEPS_SECRET=SECRET)[0] for rank in ("1", "2")]
    assert jobs[0].config.job_id == jobs[1].config.job_id


def test_processes_are_bound_only_if_wanted(tmp_path: Path) -> None:
    machine = Machine((frozenset({0}), frozenset({1})), 2)
    bound, options = job("--nproc-per-node", "2")
    assert [command.cpus for command in commands_of(bound, options, machine, tmp_path)] == [
        frozenset({0}),
        frozenset({1}),
    ]
    free, options = job("--nproc-per-node", "2", BYTEPS_NUMA_ON="0")
    assert [command.cpus for command in commands_of(free, options, machine, tmp_path)] == [None, None]


def test_a_started_job_inherits_nothing_of_the_one_it_is_started_from() -> None:
    inner, _ = job("--servers", "0", **BYTEPS_WORKER, BYTEPS_GLOBAL_RANK="1", BYTEPS_SCHEDULER_FD="9")
    assert (inner.config.rank, inner.config.size, inner.config.scheduler_fd) == (0, 1, -1)


def test_without_tee_both_outputs_are_logged(tmp_path: Path) -> None:
    logged, options = job("--log-dir", str(tmp_path), "--servers", "1")
    commands = list(commands_of(logged, options, Machine((frozenset({0}),), 1), tmp_path))
    assert [set(command.copies or {}) for command in commands] == [{STDOUT, STDERR}] * 2
