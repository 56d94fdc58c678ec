"""push_pull and broadcast of raw memory, for the adapters of the frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import Enum

from byteps import _core
from byteps.buffer import DTYPE_BYTES, DTYPE_CODES, Buffer
from byteps.call_names import UNNAMED
from byteps.device import Transfer
from byteps.errors import InternalError, InvalidArgumentError, UnsupportedError
from byteps.handles import Handle
from byteps.in_flight import InFlight
from byteps.runtime import Job, current_job

__all__ = [
    "Average",
    "Buffer",
    "Handle",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "accumulate_buffer",
    "average_or_op",
    "broadcast_buffer",
    "check_name",
    "check_op",
    "check_priority",
    "check_root",
    "check_staleness",
    "check_synchronous",
    "declare_buffer",
    "is_automatic",
    "no_gradient_of",
    "one_call",
    "poll",
    "push_pull_and_wait",
    "push_pull_buffer",
    "resolve_op",
    "seed_buffer",
    "staleness_code",
    "synchronize",
    "unsupported_dtype",
]

BROADCAST = _core.OP_CODES["broadcast"]
SEED = _core.OP_CODES["seed"]
ACCUMULATE = _core.OP_CODES["accumulate"]
MAX_STALENESS = 254
_UNBOUNDED = 255  # the core's code


class ReduceOp(Enum):
    """The elementwise reduction of push_pull. The value is the core's code."""

    Average = _core.OP_CODES["average"]
    Sum = _core.OP_CODES["sum"]
    Min = _core.OP_CODES["min"]
    Max = _core.OP_CODES["max"]
    Product = _core.OP_CODES["product"]


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


def resolve_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Returns the operation for BytePS's `average` and the newer `op`; Average if both are None."""
    if op is None:
        return ReduceOp.Average if average is None or average else ReduceOp.Sum
    check_op(op)
    return op


def average_or_op(average: bool | None, op: ReduceOp | None, caller: str) -> ReduceOp:
    """`resolve_op` for functions of Horovod, in which `average` and `op` exclude each other."""
    if average is not None and op is not None:
        raise InvalidArgumentError(f"{caller}: give either average or op, not both")
    return resolve_op(average, op)


def check_op(op: object) -> None:
    """Raises InvalidArgumentError unless `op` is a ReduceOp."""
    if not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op is {op!r}: expected Average, Sum, Min, Max or Product of this package")


def unsupported_dtype(dtype: object, advice: str, what: str = "", known: Iterable[str] = DTYPE_CODES) -> Exception:
    """Returns the error for a tensor of a dtype that cannot be reduced.

    Args:
        dtype: name of the dtype.
        advice: what to do instead.
        what: beginning of the message, such as "push_pull of 'x'".
        known: names of the supported dtypes in this framework.
    """
    begin = f"{what}: " if what else ""
    return InvalidArgumentError(f"{begin}dtype {dtype} is not supported: expected {', '.join(known)}; {advice}")


def no_gradient_of(name: str, op: str) -> Exception:
    """Returns the error for the gradient of a push_pull that is not differentiable."""
    return UnsupportedError(f"push_pull of '{name}' with op={op} has no gradient: use Average or Sum")


def check_root(root_rank: int, job: Job | None = None) -> None:
    """Raises InvalidArgumentError unless `root_rank` is a rank of the job."""
    size = (job or current_job()).size
    if not 0 <= root_rank < size:
        raise InvalidArgumentError(f"root_rank is {root_rank}: expected 0 to {size - 1}")


class _Call:
    __slots__ = ("_in_flight", "_name", "_step")

    def __init__(self, in_flight: InFlight, name: str, step: int) -> None:
        self._in_flight = in_flight
        self._name = name
        self._step = step

    def __enter__(self) -> str:
        return self._name

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            self._in_flight.refuse(self._name, error, self._step)


def one_call(name: str | None, job: Job | None = None, step: int = 0) -> _Call:
    """Returns a context for everything that one call of a push_pull does before it starts.

    The context gives the name, an automatic one if `name` is None. The n-th calls of a name on all
    ranks belong together, within a `step` of training if there is one. So a call that raises in the
    context counts, too, and fails on all ranks. May be nested, with the name of the outer context.
    """
    in_flight = (job or current_job()).in_flight
    if name is None:
        name = in_flight.automatic_name()
    check_name(name)
    return _Call(in_flight, name, step)


def is_automatic(name: str) -> bool:
    """Whether `name` is an automatic name."""
    return name.startswith(f"{UNNAMED}.")


def push_pull_buffer(
    source: Buffer,
    target: Buffer,
    name: str | None,
    op: ReduceOp,
    priority: int,
    finish: Callable[[], object],
    job: Job | None = None,
    collective: int = -1,
    step: int = 0,
) -> Handle:
    """Starts reducing `source` over all ranks into `target`.

    Args:
        source: this rank's tensor; must not change until the handle is done.
        target: gets the result; may be `source`.
        name: the same on all ranks for tensors that belong together. None:
            `InFlight.automatic_name`.
        op: the reduction.
        priority: larger ones go first.
        finish: called by `synchronize` when `target` is filled; makes the result of `synchronize`.
        job: the job whose ranks take part; None: the job of the process.
        collective: number of the collective that this push_pull is part of, the same on all ranks;
            -1: none.
        step: number of the training step, which all ranks count from 1. Gradients of different
            steps are never reduced together, also if a rank has left some out. 0: no step.

    Raises:
        InvalidArgumentError: a tensor of this name is in flight.
    """
    job = job or current_job()
    return _start(source, target, name, op.value, 0, priority, finish, job, collective=collective, step=step)


def push_pull_and_wait(
    memory: Buffer,
    name: str | None,
    op: ReduceOp,
    priority: int = 0,
    job: Job | None = None,
    collective: int = -1,
    timeout_s: float | None = None,
) -> Handle | None:
    """Reduces host memory in place over all ranks, and waits.

    It does what `synchronize(push_pull_buffer(memory, memory, ...))` does, and is faster for small
    tensors. For the arguments see there.

    Returns:
        None: it is done. A handle: it is not done after `timeout_s`, and stays in flight.

    Raises:
        BytePSError: the push_pull has failed, or a tensor of this name is in flight.
    """
    in_flight = (job or current_job()).in_flight
    if name is None:
        name = in_flight.automatic_name()
    check_name(name)
    try:  # like one_call, but without its cost
        check_priority(name, priority)
        if memory.order or memory.device is not None:
            raise InternalError(f"push_pull_and_wait of '{name}': expected row-major host memory")
        return in_flight.push_pull_and_wait(name, memory, op.value, 0, priority, collective, timeout_s)
    except Exception as error:
        in_flight.refuse(name, error)
        raise


def broadcast_buffer(
    buffer: Buffer,
    root_rank: int,
    name: str | None,
    finish: Callable[[], object],
    *,
    source: Buffer | None = None,
    job: Job | None = None,
    collective: int = -1,
    step: int = 0,
) -> Handle:
    """Starts filling `buffer` with rank `root_rank`'s `source`, by default its `buffer`.

    See `push_pull_buffer`.
    """
    job = job or current_job()
    with one_call(name, job, step) as known:
        check_root(root_rank, job)
        return _start(
            source or buffer, buffer, known, BROADCAST, root_rank, 0, finish, job, collective=collective, step=step
        )


def check_staleness(staleness: float) -> None:
    """Raises InvalidArgumentError unless it is an integer from 0 to 254, or `math.inf`."""
    is_whole = isinstance(staleness, int) and not isinstance(staleness, bool) and 0 <= staleness <= MAX_STALENESS
    if not is_whole and staleness != math.inf:
        raise InvalidArgumentError(
            f"staleness is {staleness!r}: expected a whole number from 0 to {MAX_STALENESS}, or math.inf"
        )


def staleness_code(staleness: float) -> int:
    """Returns the core's code of a number of rounds or `math.inf`."""
    return _UNBOUNDED if staleness == math.inf else int(staleness)


def check_name(name: object) -> None:
    """Raises InvalidArgumentError unless `name` is a string."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"name is {name!r}: expected a string")


def check_priority(name: str, priority: int) -> None:
    """Raises InvalidArgumentError unless `priority` is an integer of 32 bits."""
    if priority == 0 and type(priority) is int:
        return
    if not hasattr(priority, "__index__") or not -(2**31) <= priority < 2**31:
        raise InvalidArgumentError(
            f"push_pull of '{name}': priority is {priority!r}: expected 32 bits of a whole number"
        )


def check_synchronous(caller: str) -> None:
    """Raises UnsupportedError if the environment asks for asynchronous training."""
    if current_job().config.asynchronous:
        raise UnsupportedError(
            f"{caller}: BYTEPS_ENABLE_ASYNC=1 asks for asynchronous training, which byteps supports for PyTorch and "
            "MXNet only (DistributedOptimizer): unset it to train synchronously"
        )


def seed_buffer(buffer: Buffer, name: str, staleness: float, priority: int, finish: Callable[[], object]) -> Handle:
    """Starts replacing `buffer` by the parameter `name` that the summation services hold.

    The first call of rank 0 sets the value, and other ranks wait for it; their own values are
    ignored. Later calls only read the value.

    Args:
        buffer: of the same size and dtype on all ranks.
        name: name of the parameter; not of a tensor that is reduced.
        staleness: number of rounds that a rank may be ahead of the slowest one, the same on all
            ranks. A rank's calls of this function and of `accumulate_buffer` for `name` are its
            rounds. Round r is answered when every rank has begun round r - staleness. 0: ranks are
            in step; `math.inf`: ranks do not wait.
        priority: larger ones go first.
        finish: see `push_pull_buffer`.
    """
    check_staleness(staleness)
    return _start(buffer, buffer, name, SEED, 0, priority, finish, current_job(), staleness)


def accumulate_buffer(
    source: Buffer, target: Buffer, name: str, staleness: float, priority: int, finish: Callable[[], object]
) -> Handle:
    """Starts adding `source` to a parameter of the services, and reading its value into `target`.

    The value contains this rank's contributions, and those of all ranks up to `staleness` rounds
    before. A contribution that fails is not added. Call `seed_buffer` first; see also
    `push_pull_buffer`.
    """
    check_staleness(staleness)
    return _start(source, target, name, ACCUMULATE, 0, priority, finish, current_job(), staleness)


def declare_buffer(name: str, dtype: str, nbytes: int) -> None:
    """Announces a tensor before its first push_pull, which is then faster. Does not wait."""
    current_job().node.declare(name, DTYPE_CODES[dtype], nbytes)


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return _checked(handle).poll()


def synchronize(handle: Handle) -> object:
    """Waits for a push_pull or broadcast and returns its result. May be called repeatedly.

    Raises:
        BytePSError: the push_pull has failed.
    """
    return _checked(handle).synchronize()


def _start(
    source: Buffer,
    target: Buffer,
    name: str | None,
    op: int,
    root: int,
    priority: int,
    finish: Callable[[], object],
    job: Job,
    staleness: float = 0,
    collective: int = -1,
    step: int = 0,
) -> Handle:
    in_flight = job.in_flight
    if name is None:
        name = in_flight.automatic_name()
    check_name(name)
    try:  # like one_call, but without its cost
        check_priority(name, priority)
        if source.device is not target.device:
            raise InternalError(f"push_pull of '{name}': input and output are on different devices")
        shape = (target.nbytes // DTYPE_BYTES[target.dtype],) if target.shape is None else target.shape
        return in_flight.start(
            name,
            source.ptr,
            target.ptr,
            target.nbytes,
            DTYPE_CODES[target.dtype],
            op,
            root,
            priority,
            source.owner if source.owner is target.owner else (source.owner, target.owner),
            finish,
            staleness_code(staleness),
            shape,
            target.order,
            collective,
            step,
            None if target.device is None else Transfer(target.device),
        )
    except Exception as error:
        in_flight.refuse(name, error, step)
        raise


def _checked(handle: Handle) -> Handle:
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"{handle!r} is not a handle: expected what an _async function returned")
    return handle
