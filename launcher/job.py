"""What a machine's processes are: their number, their environment, their cores.

Pure, but for the scheduler's socket and the names drawn at random.
"""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from byteps.config import Config
from byteps.errors import InvalidArgumentError

from .child import STDERR, STDOUT, Command
from .options import LauncherOptions
from .topology import Machine, share_cores, threads_of

Environ = Mapping[str, str]

# As `python -m byteps.server`, but the current folder, which may be a clone that was not built, is no place to look for
# byteps. (Python 3.10 has no option -P.)
SERVER = (
    sys.executable,
    "-c",
    "import sys; sys.path = [path for path in sys.path if path]; from byteps.server import main; sys.exit(main())",
)

_LOOPBACK = "127.0.0.1"
_BACKLOG = 1024  # a whole job may connect at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """This machine's part of a job."""

    config: Config  # of its first worker
    env: Environ = field(repr=False)  # likewise; has the secret
    servers: tuple[int, ...] = ()  # numbers of the servers that run here
    scheduler: socket.socket | None = None  # bound and listening, for worker 0


def make_job(options: LauncherOptions, environ: Environ) -> Job:
    """The job that flags and environment describe.

    Raises:
        InvalidArgumentError: they describe none, or the scheduler's port cannot be had.
    """
    env = {**environ, "PYTHONUNBUFFERED": "1"}
    if options.secret_file is not None:
        env.pop("BYTEPS_SECRET", None)
        env["BYTEPS_SECRET_FILE"] = str(options.secret_file.absolute())
    local_size = options.nproc_per_node or _local_size(environ)
    env |= {"DMLC_ROLE": "worker", "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": str(local_size)}
    names_others = env.get("DMLC_PS_ROOT_URI") or env.get("DMLC_NUM_WORKER", "1") != "1"
    if names_others and not options.describes_job:
        config = Config.parse(env)
        if config.sources["scheduler_host"] == "environment DMLC_PS_ROOT_URI" and not config.is_single_process:
            return Job(config=config, env=env)  # somebody else starts the scheduler
    return _own_job(options, env)


def commands_of(job: Job, options: LauncherOptions, machine: Machine, folder: Path) -> Iterator[Command]:
    """Workers first, in the order of their ranks. In `folder` they write what ends them."""
    local_size = job.config.local_size
    cpus = share_cores(machine, local_size) if job.config.numa_on else [None] * local_size
    every = options.tee.get(None, 0)
    for local_rank in range(local_size):
        env = {**job.env, "BYTEPS_LOCAL_RANK": str(local_rank), **_torch_variables(job.config, local_rank)}
        fds: tuple[int, ...] = ()
        if job.scheduler is not None and local_rank == 0:
            fds = (job.scheduler.detach(),)
            env["BYTEPS_SCHEDULER_FD"] = str(fds[0])
        label = f"r{job.config.rank + local_rank}"
        env["BYTEPS_ERROR_FILE"] = str(folder / label)
        yield Command(
            label=label,
            argv=options.command,
            env=env,
            pass_fds=fds,
            cpus=cpus[local_rank],
            copies=_copies(job, options, label, options.tee.get(local_rank, every)),
        )
    for number in job.servers:
        env = {name: value for name, value in job.env.items() if name != "BYTEPS_LOCAL_RANK"} | {"DMLC_ROLE": "server"}
        argv = SERVER
        env["BYTEPS_ERROR_FILE"] = str(folder / f"s{number}")
        copies = _copies(job, options, f"s{number}", every)
        yield Command(label=f"s{number}", argv=argv, env=env, is_server=True, copies=copies)


def with_threads(job: Job, machine: Machine) -> Job:
    """The same with OMP_NUM_THREADS, so that ranks do not fight for cores."""
    threads = {"OMP_NUM_THREADS": str(threads_of(machine, job.config.local_size))}
    return replace(job, env={**job.env, **threads})


def _torch_variables(config: Config, local_rank: int) -> dict[str, str]:
    """A worker's place in the words of torchrun: torch.distributed reads them, and libraries above it."""
    return {
        "RANK": str(config.rank + local_rank),
        "WORLD_SIZE": str(config.size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(config.local_size),
    }


def _copies(job: Job, options: LauncherOptions, label: str, streams: int) -> dict[int, Path]:
    if options.log_dir is None:
        return {}
    directory = options.log_dir / job.config.job_id / label
    names = {STDOUT: "stdout.log", STDERR: "stderr.log"}
    return {number: directory / name for number, name in names.items() if streams & number}


def processes_for(environ: Environ, machine: Machine) -> int:
    """As torchrun's "auto": one for each GPU that may be used, or without GPUs for each core."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if (listed := environ.get(name, "").strip()) and listed != "all":
            return len(_names_in(listed)) or machine.cores
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or machine.cores


def _names_in(listed: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    return [name for name in names if name and name not in {"-1", "none", "void", "NoDevFiles"}]


def _local_size(environ: Environ) -> int:
    """BytePS's rule: a worker for each device, or one."""
    devices = [name for name in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    text = environ.get("BYTEPS_LOCAL_SIZE") or str(len(devices) or 1)
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgumentError(f"BYTEPS_LOCAL_SIZE={text!r}: expected a whole number of at least 1")
    return int(text)


def _own_job(options: LauncherOptions, env: dict[str, str]) -> Job:
    nnodes, node_rank, servers = options.nnodes or 1, options.node_rank or 0, options.servers or 0
    if nnodes > 1:
        _check_several_machines(options, env)
    host, port = options.master_addr or _LOOPBACK, options.master_port or 0
    scheduler = _listen(host, port) if node_rank == 0 else None
    env |= {
        "DMLC_NUM_WORKER": str(nnodes),
        "DMLC_WORKER_ID": str(node_rank),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(scheduler.getsockname()[1] if scheduler is not None else port),
        "BYTEPS_HOST_SCHEDULER": "1",
        "MASTER_ADDR": host,  # of torch's store
        "MASTER_PORT": str(port + 1 if nnodes > 1 else _free_port(host)),
    }
    for name in ("BYTEPS_GLOBAL_RANK", "BYTEPS_SCHEDULER_FD"):  # of a job that this one is started from
        env.pop(name, None)
    if not env.get("BYTEPS_SECRET") and not env.get("BYTEPS_SECRET_FILE"):
        env["BYTEPS_SECRET"] = secrets.token_hex(32)
    if not env.get("BYTEPS_JOB_ID"):
        env["BYTEPS_JOB_ID"] = f"nodes-{port}" if nnodes > 1 else secrets.token_hex(8)
    here = tuple(range(node_rank, servers, nnodes))
    return Job(config=Config.parse(env), env=env, servers=here, scheduler=scheduler)


def _check_several_machines(options: LauncherOptions, env: Environ) -> None:
    flags = {
        "--node-rank": options.node_rank,
        "--master-addr": options.master_addr,
        "--master-port": options.master_port,
    }
    missing = [name for name, value in flags.items() if value is None]
    if not env.get("BYTEPS_SECRET") and not env.get("BYTEPS_SECRET_FILE"):
        missing.append("--secret-file (or BYTEPS_SECRET_FILE)")
    if missing:
        raise InvalidArgumentError(
            f"--nnodes {options.nnodes} needs the same job on every machine: expected {', '.join(missing)}"
        )
    if options.master_port == 65535:
        raise InvalidArgumentError(
            "--master-port 65535: expected at most 65534, because torch's store has the next one"
        )


def _free_port(host: str) -> int:
    """For torch's store, which opens its port itself; another program may have taken it by then."""
    with _listen(host, 0) as probe:
        return int(probe.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgumentError(f"--master-addr {host}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidArgumentError(
            f"cannot listen for the scheduler on {host} port {port}: {error.strerror}; "
            "expected a free port and, with --node-rank 0, an address of this machine"
        ) from error
    return listener
