"""Computes the processes of a machine: their number, environment and cores.

Pure functions, except for the scheduler's socket and random names.
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
from .discovery import remote_command
from .options import LauncherOptions
from .topology import Machine, share_cores, threads_of

Environ = Mapping[str, str]

# Like `python -m byteps.server`, but does not import from the current folder, which may be a clone
# that was not built. (Python 3.10 has no option -P.)
SERVER = (
    sys.executable,
    "-c",
    "import sys; sys.path = [path for path in sys.path if path]; from byteps.server import main; sys.exit(main())",
)

_LOOPBACK = "127.0.0.1"
_BACKLOG = 1024  # all processes of a job may connect at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The part of a job that runs on this machine."""

    config: Config  # settings of the first worker
    env: Environ = field(repr=False)  # environment of the first worker; contains the secret
    local_size: int = 1  # number of workers on this machine
    servers: tuple[int, ...] = ()  # numbers of the servers on this machine
    # Listening socket for the scheduler, in worker 0, or for the coordinator of an elastic job.
    scheduler: socket.socket | None = None


def make_job(options: LauncherOptions, environ: Environ) -> Job:
    """Returns the job that flags and environment describe.

    Raises:
        InvalidArgumentError: invalid flags or environment, or the scheduler's port is not free.
    """
    env = {**environ, "PYTHONUNBUFFERED": "1"}
    if options.is_remote:
        env.pop("BYTEPS_SECRET_FILE", None)
        env["BYTEPS_SECRET"] = sys.stdin.readline().strip()
    elif options.secret_file is not None:
        env.pop("BYTEPS_SECRET", None)
        env["BYTEPS_SECRET_FILE"] = str(options.secret_file.absolute())
    local_size = options.nproc_per_node or _local_size(environ)
    if options.is_elastic:
        return _elastic_job(options, env, local_size)
    env |= {"DMLC_ROLE": "worker", "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": str(local_size)}
    has_other_machines = env.get("DMLC_PS_ROOT_URI") or env.get("DMLC_NUM_WORKER", "1") != "1"
    if has_other_machines and not options.describes_job:
        config = Config.parse(env)
        if config.sources["scheduler_host"] == "environment DMLC_PS_ROOT_URI" and not config.is_single_process:
            return Job(config=config, env=env, local_size=local_size)  # the scheduler runs elsewhere
    return _own_job(options, env)


def commands_of(job: Job, options: LauncherOptions, machine: Machine, folder: Path) -> Iterator[Command]:
    """Yields the commands of the workers, in the order of ranks, and of the servers.

    Processes report the cause of their end in `folder`.
    """
    if job.config.elastic:
        yield from _elastic_commands(job, options, machine, folder)
        return
    local_size = job.local_size
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
        yield Command(
            label=f"s{number}",
            argv=argv,
            env=env,
            is_server=True,
            may_be_lost=job.config.failover != "off",
            copies=copies,
        )


def _elastic_commands(job: Job, options: LauncherOptions, machine: Machine, folder: Path) -> Iterator[Command]:
    """The coordinator, on its machine, and workers, which have no ranks yet."""
    every = options.tee.get(None, 0)
    if job.scheduler is not None:
        fd = job.scheduler.detach()
        env = {**job.env, "DMLC_ROLE": "coordinator", "BYTEPS_SCHEDULER_FD": str(fd)}
        env["BYTEPS_ERROR_FILE"] = str(folder / "coordinator")
        yield Command(
            label="coordinator",
            argv=SERVER,
            env=env,
            pass_fds=(fd,),
            is_server=True,
            may_be_lost=True,
            may_restart=False,
            judges=True,
            copies=_copies(job, options, "coordinator", every),
        )
    if options.host_discovery_script is not None:
        return
    cpus = share_cores(machine, job.local_size) if job.config.numa_on else [None] * job.local_size
    first = (options.node_rank or 0) * job.local_size
    for local_rank in range(job.local_size):
        label = f"w{first + local_rank}"
        yield Command(
            label=label,
            argv=options.command,
            env={**job.env, "BYTEPS_ERROR_FILE": str(folder / label)},
            cpus=cpus[local_rank],
            is_elastic=True,
            copies=_copies(job, options, label, options.tee.get(local_rank, every)),
        )


def workers_of_host(job: Job, options: LauncherOptions, host: str, slots: int, number: int) -> Command:
    """Returns the command that starts `slots` workers on a host, the `number`-th one of the job."""
    config = job.config
    flags = [
        "--started-remotely",
        f"--nproc-per-node={slots}",
        f"--min-workers={config.min_workers}",
        *([f"--max-workers={config.max_workers}"] if config.max_workers else []),
        f"--max-restarts={options.max_restarts}",
        f"--node-rank={number}",
        f"--master-addr={config.scheduler_host}",
        f"--master-port={config.scheduler_ports[0]}",
    ]
    env = {**job.env, "BYTEPS_JOB_ID": config.job_id}
    shell = () if host in _names_of_this_machine(config) else options.remote_shell
    return Command(
        label=host,
        argv=remote_command(shell, host, flags, options.command, env),
        env=env,
        stdin=config.secret.encode(errors="surrogateescape") + b"\n",
        is_elastic=True,
        may_restart=False,
        copies=_copies(job, options, host, options.tee.get(None, 0)),
    )


def _names_of_this_machine(config: Config) -> set[str]:
    return {"localhost", _LOOPBACK, "::1", socket.gethostname(), config.scheduler_host}


def with_threads(job: Job, machine: Machine) -> Job:
    """Returns the job with OMP_NUM_THREADS set, so that ranks do not compete for cores."""
    threads = {"OMP_NUM_THREADS": str(threads_of(machine, job.local_size))}
    return replace(job, env={**job.env, **threads})


def _torch_variables(config: Config, local_rank: int) -> dict[str, str]:
    """Returns torchrun's variables of a worker, which torch.distributed reads."""
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
    """Returns the number of visible GPUs, or of cores without GPUs, like torchrun's "auto"."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if (listed := environ.get(name, "").strip()) and listed != "all":
            return len(_names_in(listed)) or machine.cores
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or machine.cores


def _names_in(listed: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    return [name for name in names if name and name not in {"-1", "none", "void", "NoDevFiles"}]


def _local_size(environ: Environ) -> int:
    """Returns BYTEPS_LOCAL_SIZE, else the number of visible devices, else 1, as in BytePS."""
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
        "MASTER_ADDR": host,  # for torch's store
        "MASTER_PORT": str(port + 1 if nnodes > 1 else _free_port(host)),
    }
    for name in ("BYTEPS_GLOBAL_RANK", "BYTEPS_SCHEDULER_FD"):  # of an outer job
        env.pop(name, None)
    if not env.get("BYTEPS_SECRET") and not env.get("BYTEPS_SECRET_FILE"):
        env["BYTEPS_SECRET"] = secrets.token_hex(32)
    if not env.get("BYTEPS_JOB_ID"):
        env["BYTEPS_JOB_ID"] = f"nodes-{port}" if nnodes > 1 else secrets.token_hex(8)
    here = tuple(range(node_rank, servers, nnodes))
    config = Config.parse(env)
    return Job(config=config, env=env, local_size=config.local_size, servers=here, scheduler=scheduler)


# Of jobs of fixed size, or of an outer job.
_FIXED = (
    "DMLC_NUM_WORKER", "DMLC_WORKER_ID", "DMLC_NUM_SERVER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE",
    "BYTEPS_GLOBAL_RANK", "BYTEPS_HOST_SCHEDULER", "BYTEPS_SCHEDULER_FD",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
)  # fmt: skip


def _elastic_job(options: LauncherOptions, env: dict[str, str], local_size: int) -> Job:
    nnodes, node_rank = options.nnodes or 1, options.node_rank or 0
    if nnodes > 1 or node_rank > 0:
        _check_several_machines(options, env)
    host, port = options.master_addr or _LOOPBACK, options.master_port or 0
    coordinator = _listen(host, port) if node_rank == 0 else None
    env = {name: value for name, value in env.items() if name not in _FIXED}
    env |= {
        "DMLC_ROLE": "worker",
        "BYTEPS_ELASTIC": "1",
        "BYTEPS_MIN_WORKERS": str(options.min_workers),
        "BYTEPS_MAX_WORKERS": str(options.max_workers or 0),
        "BYTEPS_INITIAL_WORKERS": str(_initial_workers(options, nnodes * local_size)),
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(coordinator.getsockname()[1] if coordinator is not None else port),
    }
    if not env.get("BYTEPS_SECRET") and not env.get("BYTEPS_SECRET_FILE"):
        env["BYTEPS_SECRET"] = secrets.token_hex(32)
    if not env.get("BYTEPS_JOB_ID"):
        env["BYTEPS_JOB_ID"] = f"elastic-{port}" if port else secrets.token_hex(8)
    return Job(config=Config.parse(env), env=env, local_size=local_size, scheduler=coordinator)


def _initial_workers(options: LauncherOptions, started: int) -> int:
    """Returns the number of workers that the job waits for at its start."""
    if options.host_discovery_script is not None or options.is_remote:
        return options.min_workers or 1
    return max(options.min_workers or 1, min(started, options.max_workers or started))


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
            f"--nnodes {options.nnodes} needs the same job on all machines: expected {', '.join(missing)}"
        )
    if options.master_port == 65535:
        raise InvalidArgumentError(
            "--master-port 65535: expected at most 65534, since torch's store uses the next port"
        )


def _free_port(host: str) -> int:
    """Returns a free port for torch's store.

    Another program may take it before the store opens it.
    """
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
