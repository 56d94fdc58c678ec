"""bpslaunch: the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from byteps.config import process_environment
from byteps.errors import InvalidArgumentError

from .job import commands_of, make_job, with_threads
from .options import Options, parse_options
from .output import Console
from .process import ProcessGroup
from .topology import read_machine

_EXIT_USAGE = 2
_EXIT_CANNOT_START = 127  # as a shell's
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: nobody reads what the job writes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one machine's part of a job and returns its exit code; in a server's place it becomes the server."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
    environ = process_environment()
    console = Console()
    role = environ.get("DMLC_ROLE", "worker").lower()
    if role in {"server", "scheduler"} and not options.describes_job:
        os.execve(sys.executable, [sys.executable, "-m", "byteps.server"], environ)
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


def _launch(options: Options, environ: dict[str, str], console: Console) -> int:
    machine = read_machine(frozenset(os.sched_getaffinity(0)))
    job = make_job(options, environ)
    if not environ.get("OMP_NUM_THREADS"):
        job = with_threads(job, machine)
        threads, count = job.env["OMP_NUM_THREADS"], job.config.local_size
        if count > 1:
            console.say(f"OMP_NUM_THREADS={threads} for each of {count} processes on {machine.cores} cores")
    commands = list(commands_of(job, options, machine))
    for command in commands:
        for path in (command.copies or {}).values():
            path.parent.mkdir(parents=True, exist_ok=True)
    return ProcessGroup(commands, console).run()


if __name__ == "__main__":
    sys.exit(main())
