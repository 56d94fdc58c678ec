"""The job of this process, from `init` to `shutdown`.

Only `init` reads the environment. All functions may be called from any thread.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from byteps import _core
from byteps.config import STARTED, Config, process_environment
from byteps.ending import Ending, on_its_way
from byteps.errors import InvalidArgumentError, NotInitializedError
from byteps.in_flight import InFlight
from byteps.nodes import ForkedNode, LocalNode, Node, forked_from

__all__ = [
    "barrier",
    "cross_rank",
    "cross_size",
    "get_pushpull_speed",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]

log = logging.getLogger("byteps")


class Job:
    """The membership of this process in a job."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Joins the job that `environ` describes.

        Blocks until all processes of the job have joined.
        """
        config = Config.from_env(environ)
        if config.role != "worker":
            raise InvalidArgumentError(f"init() in a process with DMLC_ROLE={config.role}: only workers call it")
        self.environ = environ
        self.config = config
        self._take_part(_join(config))
        self.in_flight = InFlight(self.node)

    def _take_part(self, node: Node) -> None:
        """Sets what is constant while the membership does not change."""
        self.node = node
        self.rank = node.rank
        self.size = node.size
        self.local_rank = node.local_rank
        self.local_size = node.local_size
        self.local_ranks = node.local_ranks
        self.forked = False
        self.numbers: Counter[str] = Counter()  # see per_job.JobNumber

    def in_new_epoch(self) -> Job:
        """Returns the job that this process is in after a change of an elastic job's members.

        It has the same node, and numbers everything anew, as on the ranks that have come.
        """
        job = Job.__new__(Job)
        job.environ, job.config = self.environ, self.config
        job._take_part(self.node)
        job.in_flight = self.in_flight.in_new_epoch()
        return job

    def leave(self, cause: str = "") -> None:
        """Leaves the job. Handles that were not synchronized fail.

        Args:
            cause: the exception that ends this process, which fails the job for all ranks. "": the
                job goes on. Ranks that wait for this one are told of the exception that is being
                handled.
        """
        self.node.shutdown(cause, on_its_way())
        self.in_flight.close()

    def push_pulls(self) -> float:
        """Returns the number of push_pulls that were started."""
        return 0.0 if self.forked else self.node.metrics()["push_pulls"]

    def disown(self) -> None:
        """Prepares for use in a forked child, which must never destroy the parent's node."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.node))
        self.node = ForkedNode(self.rank)
        self.in_flight.disown(self.node)
        self.forked = True


def _join(config: Config) -> Node:
    if config.is_single_process:
        return LocalNode()
    if not config.elastic:
        return _core.Node(config.to_node_config())
    node = _core.ElasticNode(config.to_node_config())
    if config.error_file:
        Path(config.error_file + STARTED).touch()  # for bpslaunch
    return node


class _Process:
    """The jobs of this process, one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards init, shutdown, suspend and resume
        self.job: Job | None = None
        self.beside: set[Job] = set()  # further jobs, of groups of ranks; see `join_beside`
        self.suspended: Job | None = None
        self.past = ""  # why there is no job any more
        self.before_leaving: list[Callable[[], Exception | None]] = []
        self.at_exit_registered = False
        self.jobs = 0  # number of jobs joined so far
        self.past_progress = 0.0  # number of push_pulls in jobs that were left
        self.ending = Ending(self.on_uncaught, self.failure, self.progress)

    def join(self, environ: Mapping[str, str]) -> None:
        self.watch_ending(environ)
        self.job = Job(environ)
        self.jobs += 1
        self.job.node.offer_to_c()
        self.suspended = None
        self.register_at_exit()

    def commit(self) -> tuple[bool, bool]:
        """Agrees with the other ranks on a change of an elastic job; see `membership`."""
        with self.lock:
            job = current_job()
            if not isinstance(job.node, _core.ElasticNode):
                return False, False
            is_entered, has_newcomers = job.node.commit()
            if is_entered:
                self.job = job.in_new_epoch()
                self.jobs += 1
                self.job.node.offer_to_c()
            return is_entered, has_newcomers

    def leave_others(self) -> None:
        with self.lock:
            job = current_job()
            if isinstance(job.node, _core.ElasticNode):
                job.node.leave_others()
            self.leave(" any more: this worker has left the others")

    def register_at_exit(self) -> None:
        if not self.at_exit_registered:
            atexit.register(self.at_exit)
            os.register_at_fork(after_in_child=self.after_fork_in_child)
            self.at_exit_registered = True

    def watch_ending(self, environ: Mapping[str, str]) -> None:
        """Watches for the end of the process. Call it before joining, which may fail."""
        self.ending.error_file = environ.get("BYTEPS_ERROR_FILE", "")
        self.ending.watch()

    def failure(self) -> str:
        """Returns why a job of this process has failed, or ""."""
        return next((text for job in (self.job, *self.beside) if job is not None and (text := job.node.failure())), "")

    def progress(self) -> float:
        """Returns the number of push_pulls that this process has started."""
        return self.past_progress + sum(job.push_pulls() for job in (self.job, *self.beside) if job is not None)

    def on_uncaught(self) -> None:
        """Leaves all jobs now: the program may wait forever for its own threads before it ends."""
        try:
            self.leave_all(self.ending.cause)
        except Exception as error:  # the program's own exception was printed
            log.error("leaving the job: %s: %s", type(error).__name__, error)

    def leave_all(self, cause: str) -> None:
        for job in list(self.beside):
            leave(job, cause)
        with self.lock:
            if cause:  # other ranks should learn of it soon
                self.before_leaving.clear()
            self.leave(" any more: shutdown() was called", cause)

    def at_exit(self) -> None:
        try:
            self.leave_all(self.ending.at_exit())
        except Exception as error:  # the program cannot handle it any more
            log.error("leaving the job at the end of the program: %s: %s", type(error).__name__, error)

    def leave(self, past: str, cause: str = "") -> None:
        self.suspended = None
        if self.job is not None and not self.job.forked:
            errors = [error for callback in self.before_leaving if (error := callback()) is not None]
            job, self.job, self.past = self.job, None, past
            _core.leave_c_job(self.absence())
            self.past_progress += job.push_pulls()
            job.leave(cause)
            if errors:
                raise errors[0]

    def absence(self) -> str:
        """Returns the error message for calls that need a job while there is none."""
        return f"byteps is not initialized{self.past}: call byteps.init() first"

    def check_not_forked(self) -> None:
        if self.job is not None and self.job.forked:
            raise NotInitializedError(
                f"init() in a process forked from rank {self.job.rank} of a job: start it with the 'spawn' method"
            )

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()  # another thread of the parent may have held it
        for job in {self.job, *self.beside}:
            if job is not None and not job.forked:
                job.disown()
        if self.job is not None:
            _core.abandon_c_job(forked_from(self.job.rank))
        _core.close_descriptors_in_child()


_process = _Process()


def current_job() -> Job:
    """Returns the job of this process; for the other modules of byteps.

    Raises:
        NotInitializedError: there is no job.
    """
    job = _process.job
    if job is None:
        raise NotInitializedError(_process.absence())
    return job


def call_before_leaving(callback: Callable[[], Exception | None]) -> None:
    """Has `callback` called whenever this process is about to leave the job of `init`.

    For adapters whose framework runs asynchronously: the callback waits until everything that the
    program has asked for is done, since other ranks wait for it. The error that it returns is
    raised by `shutdown` or `suspend` after the job has been left, or logged at exit. A process that
    ends by an exception leaves at once.
    """
    _process.before_leaving.append(callback)


def jobs_so_far() -> int:
    """Returns the number of jobs joined by `init` and `resume`, including the current one."""
    return _process.jobs


def commit() -> tuple[bool, bool]:
    """Enters the next epoch of an elastic job, if all ranks can; for `byteps.membership`.

    Returns:
        Whether this process is in another epoch now, and whether there are ranks that have come.
    """
    return _process.commit()


def note_state() -> None:
    """This process has the state of the training: an elastic job can go on with it alone."""
    node = current_job().node
    if isinstance(node, _core.ElasticNode):
        node.note_state()


def coordinator_failure() -> str:
    """Returns why an elastic job has no coordinator any more, or ""; for `byteps.membership`."""
    node = current_job().node
    return node.coordinator_failure() if isinstance(node, _core.ElasticNode) else ""


def leave_others() -> None:
    """Leaves an elastic job while the others go on without this process; for `byteps.membership`."""
    _process.leave_others()


def join_as_process(environ: Mapping[str, str]) -> Job:
    """`init` for the job that `environ` describes, for adapters that have their own rendezvous.

    Raises:
        InvalidArgumentError: this process has a job already.
    """
    with _process.lock:
        _process.check_not_forked()
        if _process.job is not None:
            raise InvalidArgumentError("byteps.init() was called in the meantime: this process has a job already")
        _process.join(environ)
        return current_job()


def join_beside(environ: Mapping[str, str]) -> Job:
    """Joins a further job, for collectives of a group of ranks, which have other numbers in it.

    Call `leave` to leave it; the end of the process leaves it, too. Several threads may call this
    at the same time.
    """
    _process.watch_ending(environ)
    job = Job(environ)
    with _process.lock:
        _process.register_at_exit()
        _process.beside.add(job)
    return job


def leave(job: Job, cause: str = "") -> None:
    """Leaves a job that one of the functions above has joined. Does nothing if it was left already.

    `cause`: the exception that ends this process.
    """
    with _process.lock:
        is_own = job is _process.job
        if is_own:
            _process.leave(" any more: the process group that joined the job was destroyed", cause)
        elif job not in _process.beside:
            return
        else:
            _process.past_progress += job.push_pulls()
        _process.beside.discard(job)
    if not is_own and not job.forked:
        job.leave(cause)  # without the lock: other ranks may have to leave another job first


def init(lazy: bool = True) -> None:
    """Joins the job that the environment describes.

    Without a launcher, the job has only this process. Returns when all processes have joined. A
    second call does nothing.

    Args:
        lazy: accepted for BytePS's scripts, unused: `init` always joins the job, so that missing
            ranks are errors of `init`.

    Raises:
        InvalidArgumentError: invalid settings, all in one message; or ranks or a communicator as
            argument, as for Horovod.
        TimeoutError: a process of the job did not start.
    """
    if not isinstance(lazy, bool | int):
        raise InvalidArgumentError(
            f"init({lazy!r:.80}): expected no argument, as all processes of the job take part; for groups of ranks "
            "use torch.distributed.new_group with the backend byteps"
        )
    with _process.lock:
        _process.check_not_forked()
        if _process.job is None:
            _process.join(process_environment())


def shutdown() -> None:
    """Leaves the job. Also called at exit. Does nothing without a job. `init` may be called again.

    Raises:
        Exception: a pending operation of the framework has failed. The job has been left
            nevertheless.
    """
    with _process.lock:
        _process.leave(" any more: shutdown() was called")


def suspend() -> None:
    """Leaves the job until `resume`. Raises the same errors as `shutdown`.

    Tensors keep their names.
    """
    with _process.lock:
        job = current_job()
        try:
            _process.leave(" at the moment: suspend() was called, and resume() was not")
        finally:
            _process.suspended = job


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins the job again after `suspend`, with another number of machines.

    All other settings are those of `init`.

    Args:
        num_workers: number of worker machines, as in DMLC_NUM_WORKER.
        num_servers: number of server processes.
        global_rank: rank of this process.
        context: accepted for BytePS's scripts, unused.
    """
    with _process.lock:
        _process.check_not_forked()
        if _process.suspended is None:
            raise NotInitializedError("resume() without suspend(): there is no job to join again")
        topology = {
            "DMLC_NUM_WORKER": str(num_workers),
            "DMLC_NUM_SERVER": str(num_servers),
            "BYTEPS_GLOBAL_RANK": str(global_rank),
        }
        _process.join({**_process.suspended.environ, **topology})


def is_initialized() -> bool:
    """Whether this process has a job: after `init`, before `shutdown`, not in forked children."""
    return _process.job is not None and not _process.job.forked


def rank() -> int:
    """Returns the number of this process, from 0 to `size` - 1.

    This function and the ones below also work in forked children (such as DataLoader's workers).
    Between `suspend` and `resume` they return the numbers of the job that was left.
    """
    return _latest_job().rank


def size() -> int:
    """Returns the number of workers."""
    return _latest_job().size


def local_rank() -> int:
    """Returns the number of this process among the workers of its machine."""
    return _latest_job().local_rank


def local_size() -> int:
    """Returns the number of workers on this machine."""
    return _latest_job().local_size


def cross_rank() -> int:
    """Returns the number of this process among the workers with the same `local_rank`."""
    job = _latest_job()
    return _with_local_rank(job.local_rank, job.local_ranks[: job.rank])


def cross_size() -> int:
    """Returns the number of workers with the same `local_rank`, one on each machine."""
    job = _latest_job()
    return _with_local_rank(job.local_rank, job.local_ranks)


def is_homogeneous() -> bool:
    """Whether all machines have the same number of workers."""
    return len({local_size for _, local_size in _latest_job().local_ranks}) == 1


def _latest_job() -> Job:
    return _process.job or _process.suspended or current_job()


def _with_local_rank(local_rank: int, local_ranks: Sequence[tuple[int, int]]) -> int:
    return sum(each == local_rank for each, _ in local_ranks)


def barrier() -> None:
    """Blocks until every rank has called it."""
    current_job().node.barrier()


def get_pushpull_speed() -> tuple[int, float]:
    """Removes and returns the oldest sample: (milliseconds since the epoch, MB/s of tensor bytes).

    Samples are about ten seconds apart, and the newest 1024 are stored. Returns (0, -5.0) if there
    is none.
    """
    return current_job().in_flight.speed.pop_oldest()


def metrics() -> dict[str, float]:
    """Returns counters of this process since `init`. `byteps._core.METRICS` says what they count."""
    return current_job().node.metrics()
