"""The program bpslaunch."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from byteps.config import process_environment
from byteps.detect import detect
from byteps.errors import InvalidArgumentError

from .discovery import Discovery, HostScript
from .job import SERVER, Job, commands_of, make_job, processes_for, with_threads, workers_of_host
from .options import AUTO, LauncherOptions, parse_options
from .output import Console
from .process import GracePeriods, ProcessGroup
from .topology import read_machine

_INNER = ("RANK", "WORLD_SIZE")  # set by torchrun, or by another bpslaunch
_EXIT_USAGE = 2
_EXIT_CANNOT_START = 127  # as in a shell
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of the output has gone


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the part of a job on this machine and returns its exit code.

    With DMLC_ROLE=server, scheduler or coordinator this process becomes that.
    """
    options = parse_options(sys.argv[1:] if argv is None else argv)
    environ = process_environment()
    console = Console()
    role = environ.get("DMLC_ROLE", "").lower() or "worker"
    if role not in {"worker", "server", "scheduler", "coordinator"}:
        console.say(f"DMLC_ROLE={environ['DMLC_ROLE']!r}: expected one of worker, server, scheduler, coordinator")
        return _EXIT_USAGE
    if role != "worker" and not options.describes_job:
        os.execve(sys.executable, SERVER, environ)
    if not options.command:
        console.say("no command: expected one, such as: bpslaunch --nproc-per-node 2 train.py")
        return _EXIT_USAGE
    try:
        return _launch(options, environ, console)
    except InvalidArgumentError as error:
        console.say(str(error))
        return _EXIT_USAGE
    except BrokenPipeError:
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        console.say(f"cannot start the job: {error.filename or ''}: {error.strerror}")
        return _EXIT_CANNOT_START


def _launch(options: LauncherOptions, environ: dict[str, str], console: Console) -> int:
    machine = read_machine(frozenset(os.sched_getaffinity(0)))
    if options.nproc_per_node == AUTO:
        options = replace(options, nproc_per_node=processes_for(environ, machine))
    warn_of_outer_launcher(options, environ, console)
    job = make_job(options, environ)
    if not environ.get("OMP_NUM_THREADS") and options.host_discovery_script is None:  # each machine has its own
        job = with_threads(job, machine)
        threads, count = job.env["OMP_NUM_THREADS"], job.config.local_size
        if count > 1:
            console.say(f"OMP_NUM_THREADS={threads} for each of {count} processes on {machine.cores} cores")
    folder = Path(tempfile.mkdtemp(prefix="bpslaunch-"))
    commands = list(commands_of(job, options, machine, folder))
    grace = GracePeriods(to_stop=job.config.grace_s, of_stopped=job.config.timeout_s)
    group = ProcessGroup(
        commands,
        console,
        grace,
        folder,
        options.max_restarts,
        _discovery(options, job, console),
        ends_with_stdin=options.is_remote,
    )
    return group.run()


def _discovery(options: LauncherOptions, job: Job, console: Console) -> Discovery | None:
    if options.host_discovery_script is None:
        return None
    path = Path(options.host_discovery_script).absolute()
    script = HostScript([str(path)], options.nproc_per_node or 1)
    return Discovery(script, partial(workers_of_host, job, options), console.say, options.max_restarts)


def warn_of_outer_launcher(options: LauncherOptions, environ: Mapping[str, str], console: Console) -> None:
    """Warns if mpirun or srun starts several bpslaunch without flags, each with its own job."""
    outer = detect({name: value for name, value in environ.items() if name not in _INNER}, [])
    if outer is None or outer.size == 1 or options.nnodes or environ.get("DMLC_NUM_WORKER") or outer.rank > 0:
        return
    console.say(
        f"{outer.launcher} has started {outer.size} processes, and each bpslaunch starts a separate job: pass "
        f"--nnodes {outer.size} and --node-rank, or start without bpslaunch: {outer.launcher} ... python train.py"
    )


if __name__ == "__main__":
    sys.exit(main())
