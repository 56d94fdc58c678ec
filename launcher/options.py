"""The command line of bpslaunch."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps.version import package_version

AUTO = 0

_DESCRIPTION = """Starts the processes of a training job on this machine and ends them together.
Flags with the names of torchrun's flags have the same meaning."""

_EPILOG = """examples:
  bpslaunch --nproc-per-node 4 train.py --epochs 3
  bpslaunch --nproc-per-node 2 --servers 1 -- python train.py
  on each of two machines, with the same secret file:
  bpslaunch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 9000 --secret-file job.key train.py
  as in BytePS: DMLC_ROLE=scheduler bpslaunch; DMLC_ROLE=server bpslaunch; DMLC_ROLE=worker bpslaunch python train.py
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """The flags of bpslaunch. None: the flag was not given, and the environment is used."""

    nnodes: int | None  # of an elastic job: at its start
    nproc_per_node: int | None  # AUTO: the number of GPUs or cores
    node_rank: int | None
    servers: int | None
    min_workers: int | None
    max_workers: int | None  # 0: no limit
    max_restarts: int
    host_discovery_script: str | None
    remote_shell: tuple[str, ...]
    is_remote: bool  # started by a bpslaunch that follows a --host-discovery-script
    master_addr: str | None
    master_port: int | None
    secret_file: Path | None
    log_dir: Path | None
    tee: dict[int | None, int]  # local rank, or None for the others -> 1, 2 or 3 (both)
    command: tuple[str, ...]

    @property
    def describes_job(self) -> bool:
        """Whether flags describe the job, so that BytePS's environment variables are not used."""
        flags = (self.nnodes, self.node_rank, self.servers, self.master_addr, self.master_port)
        return self.is_elastic or any(flag is not None for flag in flags)

    @property
    def is_elastic(self) -> bool:
        """Whether workers may come and go while training goes on."""
        return self.min_workers is not None


def parse_options(argv: Sequence[str]) -> LauncherOptions:
    """Parses the flags. Exits with code 2 and a message if they are invalid."""
    parser = _parser()
    given = parser.parse_args(argv)
    nnodes, min_workers, max_workers = _sizes(given, parser)
    if given.tee and given.log_dir is None:
        parser.error("--tee needs --log-dir")
    return LauncherOptions(
        nnodes=nnodes,
        nproc_per_node=given.nproc_per_node,
        node_rank=given.node_rank,
        servers=given.servers,
        min_workers=min_workers,
        max_workers=max_workers,
        max_restarts=given.max_restarts,
        host_discovery_script=given.host_discovery_script,
        remote_shell=tuple(shlex.split(given.remote_shell)),
        is_remote=given.started_remotely,
        master_addr=given.master_addr,
        master_port=given.master_port,
        secret_file=given.secret_file,
        log_dir=given.log_dir,
        tee=given.tee or {None: 3},
        command=_command(given.command, is_module=given.module),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bpslaunch",
        usage="bpslaunch [flags] [--] command ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def flag(name: str, *other_names: str, **about: object) -> None:
        spellings = {
            f"--{each}" for hyphened in (name, *other_names) for each in (hyphened, hyphened.replace("-", "_"))
        }
        parser.add_argument(*sorted(spellings), dest=name.replace("-", "_"), **about)  # type: ignore[arg-type]

    flag(
        "nnodes",
        type=_range,
        metavar="N",
        help="number of worker machines (1); MIN:MAX: the job is elastic, and has between MIN and MAX machines",
    )
    flag(
        "nproc-per-node",
        type=_processes,
        metavar="N",
        help="number of workers on each machine (BYTEPS_LOCAL_SIZE, or the number of NVIDIA_VISIBLE_DEVICES, or 1); "
        "auto: the number of GPUs, or of cores if there are none",
    )
    flag("node-rank", type=_count(0), metavar="I", help="number of this machine, from 0")
    flag(
        "servers",
        type=_count(0),
        metavar="K",
        help="number of server processes in the whole job (0); server i runs on machine i modulo --nnodes",
    )
    flag(
        "min-workers",
        "min-np",
        type=_count(1),
        metavar="N",
        help="the job is elastic: workers may be lost, and others may come, while training goes on; with fewer than N "
        "it waits for others",
    )
    flag(
        "max-workers",
        "max-np",
        type=_count(1),
        metavar="N",
        help="the job is elastic, and further workers wait until others are lost (no limit)",
    )
    flag(
        "max-restarts",
        type=_count(0),
        metavar="N",
        default=3,
        help="how often bpslaunch starts lost servers of this machine again, and lost workers of an elastic job, in "
        "all (3)",
    )
    flag(
        "host-discovery-script",
        metavar="FILE",
        help="program that prints the machines of an elastic job, HOST or HOST:SLOTS a line (SLOTS: --nproc-per-node); "
        "bpslaunch runs it each second, starts workers on machines that come, and ends those on machines that go",
    )
    flag(
        "remote-shell",
        metavar="COMMAND",
        default="ssh -o BatchMode=yes -o ServerAliveInterval=15",
        help="how --host-discovery-script starts a command on another machine: COMMAND HOST TEXT "
        "(ssh -o BatchMode=yes -o ServerAliveInterval=15)",
    )
    parser.add_argument("--started-remotely", action="store_true", help=argparse.SUPPRESS)
    flag("master-addr", metavar="HOST", help="address of machine 0, which runs the scheduler (127.0.0.1)")
    flag("master-port", type=_count(1, 65535), metavar="PORT", help="port of the scheduler (any free port)")
    flag(
        "secret-file",
        type=Path,
        metavar="FILE",
        help="file with the secret that all machines of the job share; mode 600",
    )
    flag("log-dir", type=Path, metavar="DIR", help="copy the output of each process to DIR/<job>/<process>/")
    flag(
        "tee",
        type=_streams,
        metavar="SPEC",
        help="streams that --log-dir copies: 1 (stdout), 2 (stderr), 3 (both, the default), or by local rank: 0:3,1:1",
    )
    parser.add_argument("--version", action="version", version=f"bpslaunch of byteps {package_version()}")
    parser.add_argument(
        "-m", "--module", action="store_true", help="run the command as a Python module: python -m command"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="program and arguments; a .py file is run by this Python"
    )
    return parser


def _command(words: Sequence[str], *, is_module: bool) -> tuple[str, ...]:
    words = list(words[1:] if words[:1] == ["--"] else words)
    if not words:
        return ()
    if is_module:
        return (sys.executable, "-m", *words)
    if words[0].endswith(".py"):
        return (sys.executable, *words)
    return tuple(words)


def _count(low: int, high: int = 65536) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {low} to {high}")
        return int(text)

    return parse


def _range(text: str) -> tuple[int, int | None]:
    """Parses N, as (N, None), or MIN:MAX."""
    least, colon, most = text.partition(":")
    count = _count(1)
    return count(least), count(most) if colon else None


def _sizes(given: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[int | None, int | None, int | None]:
    """Returns the number of machines, and the least and the largest number of workers of an elastic job."""
    nnodes, most_nodes = given.nnodes or (None, None)
    least, most = given.min_workers, given.max_workers
    if given.host_discovery_script is not None:
        _check_discovery(given, parser)
    elif most_nodes is None and least is None and most is None:
        return nnodes, None, None
    if most_nodes is not None and given.nproc_per_node in {None, AUTO} and (least is None or most is None):
        parser.error("--nnodes MIN:MAX needs a number for --nproc-per-node, or --min-workers and --max-workers")
    of_machine = given.nproc_per_node or 1
    if most_nodes is not None:
        least = (nnodes or 1) * of_machine if least is None else least
        most = most_nodes * of_machine if most is None else most
    least, most = least or 1, most or 0
    if 0 < most < least:
        parser.error(f"expected at least {least} for the largest number of workers, got {most}")
    if given.servers:
        parser.error("--servers: elastic jobs have no servers yet: their workers sum")
    return nnodes, least, most


def _check_discovery(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for name in ("nnodes", "node_rank"):
        if getattr(given, name) is not None:
            parser.error(
                f"--host-discovery-script: the script names the machines; expected no --{name.replace('_', '-')}"
            )
    script = Path(given.host_discovery_script)
    if not (script.is_file() and os.access(script, os.X_OK)):
        parser.error(f"--host-discovery-script {script}: expected a program that this user can run")
    if given.master_addr is None:
        parser.error(
            "--host-discovery-script needs --master-addr: an address of this machine that the others can reach"
        )
    if given.nproc_per_node == AUTO:
        parser.error("--host-discovery-script: expected a number for --nproc-per-node, or HOST:SLOTS in the output")


def _processes(text: str) -> int:
    return AUTO if text == "auto" else _count(1)(text)


def _streams(text: str) -> dict[int | None, int]:
    streams: dict[int | None, int] = {}
    for item in text.split(","):
        rank, colon, number = item.rpartition(":")
        if number not in {"0", "1", "2", "3"} or (colon and not rank.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r}: expected 0 to 3, or a list such as 0:3,1:1")
        streams[int(rank) if colon else None] = int(number)
    return streams
