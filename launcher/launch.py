"""bpslaunch: the program."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from byteps.config import process_environment
from byteps.detect import detect
from byteps.errors import InvalidArgumentError

from .job import SERVER, commands_of, make_job, processes_for, with_threads
from .options import AUTO, LauncherOptions, parse_options
from .output import Console
from .process import Patience, ProcessGroup
from .topology import read_machine

_INNER = ("RANK", "WORLD_SIZE")  # of torchrun, or of another bpslaunch
_EXIT_USAGE = 2
_EXIT_CANNOT_START = 127  # as a shell's
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: nobody reads what the job writes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one machine's part of a job and returns its exit code; in a server's place it becomes the server."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
    environ = process_environment()
    console = Console()
    role = environ.get("DMLC_ROLE", "").lower() or "worker"
    if role not in {"worker", "server", "scheduler"}:
        console.say(f"DMLC_ROLE={environ['DMLC_ROLE']!r}: expected one of worker, server, scheduler")
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
    if not environ.get("OMP_NUM_THREADS"):
        job = with_threads(job, machine)
        threads, count = job.env["OMP_NUM_THREADS"], job.config.local_size
        if count > 1:
            console.say(f"OMP_NUM_THREADS={threads} for each of {count} processes on {machine.cores} cores")
    folder = Path(tempfile.mkdtemp(prefix="bpslaunch-"))
    commands = list(commands_of(job, options, machine, folder))
    patience = Patience(to_stop=job.config.grace_s, of_stopped=job.config.timeout_s)
    return ProcessGroup(commands, console, patience, folder).run()


def warn_of_outer_launcher(options: LauncherOptions, environ: Mapping[str, str], console: Console) -> None:
    """Mpirun or srun that starts several bpslaunch without telling them: each would train alone, without a word."""
    outer = detect({name: value for name, value in environ.items() if name not in _INNER}, [])
    if outer is None or outer.size == 1 or options.nnodes or environ.get("DMLC_NUM_WORKER") or outer.rank > 0:
        return
    console.say(
        f"{outer.launcher} has started {outer.size} processes, and each bpslaunch makes a job of its own: give it "
        f"--nnodes {outer.size} and --node-rank, or leave bpslaunch out: {outer.launcher} ... python train.py"
    )


if __name__ == "__main__":
    sys.exit(main())
