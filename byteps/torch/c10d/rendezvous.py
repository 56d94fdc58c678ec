"""Has the ranks of a process group join a job, which the launcher describes or rank 0 makes.

Rank 0 of the group decides which, when all ranks have come.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from byteps import runtime
from byteps.config import Config, process_environment
from byteps.errors import BytePSError, InvalidArgumentError
from byteps.runtime import Job
from byteps.torch.c10d.address import is_literal_loopback, listen, reachable_host
from byteps.torch.c10d.group_info import GroupInfo
from byteps.torch.c10d.launched import claim
from byteps.torch.c10d.meeting import meet

__all__ = ["join_group", "join_world"]

Environ = Mapping[str, str]

# Variables that describe the job of a process. The job of a group has its own values.
_OF_A_JOB = (
    *("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_WORKER_ID", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
    *("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK", "BYTEPS_FORCE_DISTRIBUTED", "BYTEPS_PLACEMENT"),
    *("BYTEPS_HOST_SCHEDULER", "BYTEPS_SCHEDULER_FD", "BYTEPS_JOB_ID", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_DESCRIBES_ONE = ("DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI", "BYTEPS_LOCAL_SIZE", "BYTEPS_LOCAL_RANK", "BYTEPS_GLOBAL_RANK")
_LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "SLURM_PROCID")
_MAX_SECONDS = 7 * 24 * 3600.0  # as in byteps.config


@dataclass(frozen=True, slots=True)
class _Invitation:
    """The message of rank 0. An empty `job_id`: join the job that your environment describes."""

    job_id: str = ""
    host: str = ""
    port: int = 0
    secret: str = field(default="", repr=False)  # empty: that of the environment, or of the user


def join_world(info: GroupInfo) -> tuple[Job, bool]:
    """Returns the job of all ranks, this process's job, and whether the group has to leave it.

    Raises:
        InvalidArgumentError: by byteps.init() or the environment, this process is another rank.
    """
    if runtime.is_initialized():
        job = runtime.current_job()
        _check_same(job, info, "byteps.init() made this process", "call init_process_group before or without it")
        return job, claim(job)
    environ = process_environment()
    if info.size == 1 and not _describes_job(environ):
        return runtime.join_as_process(_alone(environ)), True
    with _Host(info, environ, may_follow_environment=True) as host:
        job = runtime.join_as_process(host.environ_of_job(_nothing_to_watch))
    try:
        _check_same(job, info, "the environment makes this process", "let one launcher say both")
    except InvalidArgumentError:
        runtime.leave(job)
        raise
    return job, True


def join_group(info: GroupInfo, watch: Callable[[], None]) -> Job:
    """Joins a job for some of the ranks, and returns it. `watch`: see `meet`."""
    # The job of all ranks has probed it.
    environ = {"BYTEPS_NIC_PROBE": "0", **process_environment()}
    if info.size == 1:
        return runtime.join_beside(_alone(environ))
    with _Host(info, environ, may_follow_environment=False) as host:
        environ_of_job = host.environ_of_job(watch)
        try:
            return runtime.join_beside(environ_of_job)
        except BytePSError as error:
            raise info.explain(error) from error


class _Host:
    """Makes the environment of the group's job. Rank 0 holds the scheduler's socket until then."""

    def __init__(self, info: GroupInfo, environ: Environ, *, may_follow_environment: bool) -> None:
        self._info = info
        self._environ = environ
        self._may_follow_environment = may_follow_environment
        self._listener: socket.socket | None = None

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.close()

    def environ_of_job(self, watch: Callable[[], None]) -> Environ:
        limit_s = _start_timeout_s(self._environ, self._info)
        invitation = _Invitation(**meet(self._info, limit_s, lambda: asdict(self._invite()), watch))
        return self._as_environ(invitation, limit_s) if invitation.job_id else self._environ

    def _invite(self) -> _Invitation:
        if self._may_follow_environment and _describes_job(self._environ):
            return _Invitation()
        host = reachable_host(self._info.store, self._environ)
        self._listener = listen(host)
        given = self._environ.get("BYTEPS_SECRET") or self._environ.get("BYTEPS_SECRET_FILE")
        # Ranks of one machine have their user's secret; in the store, other users could read one.
        secret = "" if given or is_literal_loopback(host) else secrets.token_hex(32)
        return _Invitation(
            job_id=f"torch-{secrets.token_hex(8)}",
            host=host,
            port=self._listener.getsockname()[1],
            secret=secret,
        )

    def _as_environ(self, invitation: _Invitation, start_timeout_s: float) -> Environ:
        """Returns the variables that torchrun would set, which `byteps.detect` reads."""
        own, info = self._environ, self._info
        environ = {name: value for name, value in own.items() if name not in _OF_A_JOB}
        environ |= {
            "RANK": str(info.rank),
            "WORLD_SIZE": str(info.size),
            "MASTER_ADDR": invitation.host,
            "MASTER_PORT": str(invitation.port),
            "DMLC_PS_ROOT_PORT": str(invitation.port),
            "BYTEPS_JOB_ID": invitation.job_id,
            "BYTEPS_START_TIMEOUT_S": str(start_timeout_s),
        }
        environ["BYTEPS_OP_TIMEOUT_S"] = self._op_timeout_s()
        if invitation.secret:
            environ["BYTEPS_SECRET"] = invitation.secret
            environ.pop("BYTEPS_SECRET_FILE", None)
        if all(own.get(name) == environ[name] for name in ("RANK", "WORLD_SIZE")):
            environ |= {name: own[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in own}
        if self._listener is not None:
            environ["BYTEPS_SCHEDULER_FD"] = str(self._listener.fileno())
        return environ

    def _op_timeout_s(self) -> str:
        """Returns the environment's limit, or the group's if that is shorter or the only one."""
        own, of_group = self._environ.get("BYTEPS_OP_TIMEOUT_S", ""), min(self._info.timeout_s, _MAX_SECONDS)
        with suppress(ValueError):  # the job reports values that cannot be parsed
            return own if own and (self._may_follow_environment or float(own) < of_group) else str(of_group)
        return own


def _nothing_to_watch() -> None:
    """Does nothing: no other job can report a lost rank yet."""


def _describes_job(environ: Environ) -> bool:
    return any(environ.get(name) for name in _DESCRIBES_ONE)


def _alone(environ: Environ) -> Environ:
    """Returns the environment of a job of one rank."""
    return {name: value for name, value in environ.items() if name not in (*_OF_A_JOB, *_LAUNCHERS)}


def _check_same(job: Job, info: GroupInfo, who: str, advice: str) -> None:
    if (job.rank, job.size) != (info.rank, info.size):
        raise InvalidArgumentError(
            f"init_process_group with backend byteps: {who} rank {job.rank} of {job.size}, and the process group has "
            f"it as rank {info.rank} of {info.size}: expected the same; {advice}"
        )


def _start_timeout_s(environ: Environ, info: GroupInfo) -> float:
    knob = Config.knobs()["start_timeout_s"]
    limit_s: Any = knob.default
    with suppress(KeyError, ValueError):  # the job reports all values that cannot be parsed
        limit_s = knob.parse(environ[knob.names[0]])
    return min(float(limit_s), info.timeout_s)
