"""The native core. Functions that wait release the GIL, and Ctrl-C interrupts them.

Errors are exceptions of `byteps.errors`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypedDict, final

# The keys are NumPy's names of dtypes (csrc/base/codes.h).
DTYPE_CODES: dict[str, int]
DTYPE_BYTES: dict[str, int]  # bytes of an element
OP_CODES: dict[str, int]  # by the name of an operation (csrc/base/codes.h)
ERRORS: dict[str, tuple[int, str]]  # name -> code, and name in byteps.errors (csrc/base/codes.h)

# Name of a counter -> its meaning (csrc/base/metrics.h, csrc/transport/rdma/registrations.h).
METRICS: dict[str, str]

@final
class NodeConfig:
    """The configuration of a node (csrc/base/config.h). `byteps.config` fills it; `Node` checks it.

    Keyword arguments set the attributes of the same names; others keep their defaults. `secret` is
    bytes.
    """

    FIELDS: ClassVar[tuple[str, ...]]  # names of the attributes
    def __init__(self, **fields: object) -> None: ...
    def __getattr__(self, field: str) -> Any: ...

@final
class Transfer:
    """The order of one push_pull of a CUDA device's memory among the work of its streams.

    Any thread may call the methods; none of them waits.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        """The push_pull comes after what the stream has been given so far.

        Args:
            ordinal: number of the device, among those that the process sees.
            stream: a CUstream; 0: the legacy default stream.

        Raises:
            UnsupportedError: there is no CUDA driver.
            NotInitializedError: the process has not used the device, or was forked.
            InvalidArgumentError: a CUDA graph is being captured on the stream.
        """

    def order_before(self, stream: int) -> None:
        """What the stream is given from now on comes after the copies back.

        To be called when the push_pull's handle is done.
        """

    def copy(self, output_ptr: int, input_ptr: int, nbytes: int) -> None:
        """Enqueues a copy on the stream, in place of a push_pull, for a job of one rank."""

    def is_complete(self) -> bool:
        """Whether no copy uses the tensors any more. To be called when the handle is done."""

@final
class PreparedPushPull:
    """A push_pull of row-major memory in place, started again and again; see `Node.push_pull`.

    Costs a third of it, because the constant arguments are converted once.
    """

    def __init__(self, node: JobNode, name: str, nbytes: int, dtype: int, op: int, shape: Sequence[int]) -> None: ...
    def start(self, memory: int, priority: int, step: int) -> int:
        """Returns the handle."""
    def start_on_device(self, memory: int, priority: int, step: int, ordinal: int, stream: int) -> tuple[int, Transfer]:
        """Makes a `Transfer` with `ordinal` and `stream`, and starts. Errors: of both."""

AUTOMATIC_NAMES: int  # number of names of a NameFamily

@final
class NameFamily:
    """The names "<family>.0" and so on, which come again and again, and numbers of calls."""

    def __init__(self, family: str) -> None: ...
    def next_number(self) -> int:
        """Returns the next number, from 1, modulo 2**32."""
    def next_name(self) -> str: ...
    def hold(self) -> None:
        """Makes `BlockingCalls` return False until `let_go`."""
    def let_go(self) -> None: ...
    def reserve(self, name: str) -> None:
        """Marks a name of the family, which must not be used until `release`."""
    def release(self, name: str) -> None: ...
    def is_reserved(self, name: str) -> bool: ...
    def reserved(self) -> list[str]: ...

@final
class TensorReader:
    """Finds the memory of plain tensors of torch."""

    def __init__(self, types: tuple[type, ...], codes: dict[Any, int], strided: object) -> None:
        """Args: plain types; the core's codes of torch's dtypes; torch's usual layout."""
    def read(self, tensor: object) -> tuple[int, int] | None:
        """Returns address and bytes of a plain tensor that is row-major and in host memory.

        None: the tensor is not that simple.
        """

@final
class BlockingCalls:
    """Collectives of a group of torch.distributed in which the calling thread waits.

    A call is one push_pull in place, under the next name of the family, which is reserved meanwhile.
    """

    limit_s: float  # of a wait, unless the options have another one
    def __init__(
        self,
        names: NameFamily,
        reader: TensorReader,
        operators: list[tuple[object, int]],
        limit_s: float,
        in_flight: object,
        handles: dict[str, Any],
        keep: Callable[[str, object, int], object],
        on_release: dict[str, list[Callable[[], object]]],
        numbers: Iterator[int],
        go_on: Callable[[Any, int], object],
    ) -> None:
        """Makes them for a group.

        Args:
            names: of the group's push_pulls.
            reader: of the tensors.
            operators: torch's operators and the core's codes.
            limit_s: see above.
            in_flight: an InFlight.
            handles: its handles, by name.
            keep: makes a handle of it for a push_pull that goes on.
            on_release: callbacks of its names.
            numbers: of the group's collectives.
            go_on: makes the Progress of a collective that goes on.
        """
    def all_reduce(self, tensors: object, opts: object) -> object:
        """Reduces the one tensor of a list, if the options say that the caller waits.

        Returns:
            True: it is done. False: it was not begun, because it needs more than this class does.
            Otherwise the Progress of a collective that has not ended at the time limit.

        Raises:
            BytePSError: the push_pull has failed.
        """
    def broadcast(self, tensors: object, opts: object) -> object:
        """Broadcasts; see `all_reduce`."""

def cuda_version() -> int:
    """Returns the version of the CUDA driver, such as 12040 for 12.4.

    Raises:
        UnsupportedError: there is none.
        DeviceError: it does not work, for example because there is no device.
    """

def cuda_devices() -> list[tuple[str, str]]:
    """Returns the name and the PCI address of each CUDA device. Errors: as `cuda_version`.

    Makes no context.
    """

class JobNode:
    """The membership of this process in a job, which `shutdown` ends.

    All methods may be called from any thread.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def local_ranks(self) -> list[tuple[int, int]]:
        """Local rank and local size of every worker, by rank."""
    @property
    def num_servers(self) -> int: ...
    def declare(self, name: str, dtype: int, nbytes: int) -> None:
        """Requests the tensor's placement before its first push_pull. Does not wait.

        Not for parameters of asynchronous training.
        """

    def push_pull(
        self,
        name: str,
        input_ptr: int,
        output_ptr: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        staleness: int = 0,
        shape: Sequence[int] | None = None,
        order: Sequence[int] = (),
        collective: int = -1,
        step: int = 0,
        transfer: Transfer | None = None,
    ) -> int:
        """Starts a push_pull of `nbytes` bytes and returns its handle. Does not wait.

        The n-th push_pulls of a name on all ranks belong together, including calls that raise,
        which fail on all ranks. If there is a `step`, which all ranks count from 1, push_pulls of
        the same step belong together. `shape`, the `order` of its dimensions in memory (empty:
        row-major) and the number of the `collective` must be the same on all ranks; defaults are
        not compared.

        `input_ptr` may equal `output_ptr`. Both must stay valid, and the input must not change,
        until the handle is done; the caller keeps the tensors alive. Larger `priority` goes first.
        With a `transfer`, both are addresses of its device, the copies back are enqueued when the
        handle is done, and both must stay valid until the transfer is complete.
        A name may be in flight once. `root` is used by "broadcast", "seed" and "accumulate" only.

        "seed" and "accumulate" are for parameters that the summation services hold, and return
        their current values. The root's first "seed" sets the value; other seeds are ignored.
        "accumulate" adds the input. A rank's push_pulls of the name are its rounds: round r is
        answered when every rank has begun round r - `staleness` (255: at once). `staleness` is the
        same on all ranks and in all rounds.
        """

    def push_pull_and_wait(
        self,
        name: str,
        owner: object,
        memory: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        shape: Sequence[int] | None,
        collective: int,
        timeout_s: float | None,
        keep: Callable[[str, object, int], object],
    ) -> object:
        """`push_pull` of host memory in place, and `wait`, in one call. Returns None when it is done.

        If the time is over or a signal's handler raises, the node goes on using the memory: then it
        calls `keep(name, owner, handle)`. After a timeout it returns what `keep` returns.
        """

    def refuse(self, name: str, why: str, step: int = 0) -> None:
        """Counts a push_pull of this name and step that the caller has refused.

        It fails on all ranks.
        """

    def poll(self, handle: int) -> bool:
        """Whether `wait` would return or raise without waiting."""

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        """Blocks until the push_pull is done, raises its error, and frees the handle.

        After `timeout_s` it raises `byteps.errors.TimeoutError` and does not free the handle.
        """

    def announce(self, handle: int) -> None:
        """Makes `next_done` return this handle when it is done. `wait` must still be called."""

    def next_done(self) -> int | None:
        """Blocks until an announced handle is done, and returns each of them once.

        After `shutdown` it returns the remaining handles, then None.
        """

    def barrier(self) -> None:
        """Blocks until every worker has called it."""

    def failure(self) -> str:
        """Returns why the job has failed; "" if it has not."""

    def metrics(self) -> dict[str, float]:
        """Returns the current values of all `METRICS`."""

    def offer_to_c(self) -> None:
        """Makes the C functions (`C_API`) use this node."""

    def wait_until_done(self) -> None:
        """Blocks until all workers have left; raises if the job has failed.

        For servers and schedulers.
        """

    def shutdown(self, cause: str = "", after: str = "") -> None:
        """Leaves the job. Outstanding handles fail. Idempotent.

        `cause`: the exception that ends this process and fails the job for all; "": the job goes
        on. `after`: the exception that is being handled, for ranks that wait for this one.
        """

# --- For libraries of adapters (csrc/c_api/): the address of the table of C functions, and the job
# that they use.

@final
class Node(JobNode):
    """The membership in a job of fixed size: the constructor joins."""

    def __init__(self, config: NodeConfig) -> None:
        """Joins the job. Blocks until all nodes have joined, at most for `start_timeout_s`."""

@final
class ElasticNode(JobNode):
    """The membership in an elastic job (csrc/elastic/elastic_node.h).

    Ranks and sizes change within `commit` only. Push_pulls go on when other members are lost.
    """

    def __init__(self, config: NodeConfig) -> None:
        """Comes to the job, and blocks until this process takes part in it.

        The coordinator is at the address of the scheduler.

        Raises:
            TimeoutError: the coordinator cannot be reached.
            PeerLostError: it has ended the job.
        """

    def commit(self) -> tuple[bool, bool]:
        """Enters the next epoch, if all ranks can. All ranks call it equally often.

        Returns:
            Whether the epoch is another one now, and whether there are members that have come.

        Raises:
            InvalidArgumentError: push_pulls are in flight.
        """

    def note_state(self) -> None:
        """This process has the state of the training. A job of which nobody has it cannot go on."""

    def members(self) -> list[int]:
        """Returns the numbers of the members whose contributions are in sums that complete now."""

    def coordinator_failure(self) -> str:
        """Returns why there is no coordinator any more, so that ranks do not change, or ""."""

    def leave_others(self) -> None:
        """Leaves, while the others go on without this member."""

@final
class Coordinator:
    """The coordinator of an elastic job (csrc/protocol/coordinator_state.h)."""

    def __init__(
        self,
        config: NodeConfig,
        min_workers: int,
        max_workers: int,
        initial_workers: int,
        shortage_timeout_s: float,
        gather_s: float,
    ) -> None:
        """Listens at the scheduler's socket or address of `config`."""

    @property
    def port(self) -> int: ...
    def counts(self) -> tuple[int, int, int]:
        """Returns the epoch, and the numbers of members that take part, and that wait."""

    def wait(self) -> None:
        """Blocks until the job has ended. Raises why it has failed."""

    def shutdown(self, text: str) -> None:
        """Ends the job: its members get `text` as the error."""

C_API: int

def enter_c_job_alone() -> Callable[[], dict[str, float]]:
    """Makes the C functions act for a job of one rank: every push_pull returns its input.

    Returns a function like `Node.metrics`.
    """

def leave_c_job(why: str) -> None:
    """Makes the C functions fail with `why`, as NotInitializedError."""

def abandon_c_job(why: str) -> None:
    """`leave_c_job` for forked children."""

def note_descriptor(fd: int) -> None:
    """Makes `close_descriptors_in_child` close `fd`, too, which stays open in this process."""

def close_descriptors_in_child() -> None:
    """Closes a forked child's copies of connections, so that others notice its parent's end."""

class Memory:
    """Memory that is zeroed and valid until this object and all views of it are gone.

    `nbytes` is rounded up to whole pages. It is registered at RDMA cards once, while other memory
    is registered for every push_pull. Supports the buffer protocol.

    Raises:
        MemoryError: not enough memory.
    """

    def __init__(self, nbytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def viable_transports() -> dict[str, str]:
    """Returns transport -> "" if this machine can use it, else the reason."""

def isa_levels() -> dict[str, bool]:
    """Returns instruction set ("scalar", "avx2", "avx512") -> whether this machine has it."""

def reduce_n(dst_ptr: int, src_ptrs: list[int], count: int, dtype: int, op: int) -> None:
    """Reduces `count` elements with the service's kernel: dst[i] = srcs[0][i] op srcs[1][i] op … on one thread."""

def listen_address(interface: str, node_host: str, scheduler_host: str) -> str:
    """Returns the address that a Node of this process would advertise."""

def network_interface(address: str) -> tuple[str, float]:
    """Returns the interface with `address` ("": none) and its speed in Mbit/s (0: unknown)."""

# --- RDMA (csrc/transport/rdma/), for `byteps doctor`. The TypedDicts are plain dicts.

class RdmaGid(TypedDict):
    index: int
    gid: str  # written as an IPv6 address
    kind: str  # "RoCE v1", "RoCE v2", "InfiniBand"
    interface: str  # RoCE: the interface with this address, or ""

class RdmaPort(TypedDict):
    device: str
    port: int
    is_ethernet: bool  # RoCE; else InfiniBand
    state: str  # "ACTIVE", "DOWN"
    physical: str  # "LinkUp", "Disabled"
    mbps: int  # 0: unknown
    numa_node: int  # -1: unknown, or a single node
    lid: int
    interface: str  # RoCE only, else ""
    gids: list[RdmaGid]
    why_not: str  # "" if it can be used, else the reason and the remedy

class RdmaTrial(TypedDict):
    gid: str  # "::ffff:10.0.0.2 (RoCE v2, index 1)"
    gid_index: int
    mtu_bytes: int  # maximum payload of a packet
    interface: str
    on_demand_paging: bool
    why_no_connections: str  # "" if a queue pair can be made
    why_no_memory: str  # "" if the card can register the minimum for a connection

class PeerSpeed(TypedDict):
    round_trip_us: float  # median with frames of 4 KiB
    bytes_per_s: float  # payload in each direction at the same time, on one connection

class PeerRail(PeerSpeed):
    own: str  # this machine's card
    other: str  # address and card that answered
    failure: str  # "" if it works, else the failed step and the reason

class PeerReport(TypedDict):
    host: str
    tcp: PeerSpeed
    why_no_rdma: str  # "": see `rails`
    rdma_is_absent: bool  # there is no device, or it is not wanted: no fault
    rails: list[PeerRail]  # one for each card of this machine

def rdma_library() -> str:
    """Returns why libibverbs cannot be used, or ""."""

def rdma_ports() -> list[RdmaPort]:
    """Returns all RDMA ports of this machine, from sysfs."""

def rdma_rails(config: NodeConfig, address: str) -> list[tuple[str, int]]:
    """Returns the devices and ports of a process that advertises `address`; raises if none."""

def try_rdma_port(config: NodeConfig, device: str, port: int, address: str) -> RdmaTrial:
    """Opens the port as a job does, and closes it; raises if it cannot be opened."""

def check_peer(config: NodeConfig, address: str, peer: str) -> PeerReport:
    """Checks the connection from a process that advertises `address` to the PeerListener at `peer`.

    `peer` is such as "10.0.0.2:9000". Each step has the time limit `config.timeout_s`. Raises if
    the peer cannot be reached by TCP, or is no PeerListener.
    """

@final
class PeerListener:
    """Answers `check_peer` of other machines, by TCP and by RDMA if it works, on its own thread."""

    def __init__(self, config: NodeConfig, address: str, port: int) -> None:
        """Args: `port`: 0: any free port."""

    @property
    def address(self) -> str: ...
    @property
    def why_no_rdma(self) -> str: ...
    def next(self, timeout_s: float) -> str:
        """Blocks until the next connection has ended, and describes it.

        Raises `byteps.errors.TimeoutError` after `timeout_s`.
        """

# --- Planning (csrc/protocol/placement.h, csrc/sim/scale_job.h). Speeds of network cards are in
# Mbit/s per direction. Reducer hosts are the worker machines, followed by the servers.

def reducer_host_shares(machines_mbps: list[float], servers_mbps: list[float], placement: str) -> list[float]:
    """Returns the share of bytes that each reducer host sums; `placement` as in NodeConfig."""

def predicted_seconds(machines_mbps: list[float], servers_mbps: list[float], shares: list[float], nbytes: int) -> float:
    """Returns the minimum time of a push_pull of `nbytes` bytes at these speeds of the payload.

    Network cards only; infinite if no speed is known.
    """

def bound_seconds(
    machines_mbps: list[float],
    servers_mbps: list[float],
    placement: str,
    nbytes: int,
    ranks_per_machine: int,
    threads: int,
    sum_bytes_per_s: float,
) -> float:
    """Returns the least time of a push_pull of `nbytes` bytes, with its sums, at these rates of links."""

def model_layers(name: str) -> tuple[list[tuple[int, float]], float]:
    """Returns (gradient bytes, relative work) of the layers of a model, and seconds of a step.

    Models: "vgg16", "resnet50", "gpt2".
    """

def model_gradients(
    layers: list[tuple[int, float]], compute_s: float
) -> tuple[list[tuple[int, float, float]], float, float]:
    """Divides the computing time of a step by work: (bytes, ready_s, needed_s) of gradients, backward_s, forward_s."""

def simulate_step(
    machines_mbps: list[float],
    servers_mbps: list[float],
    placement: str,
    gradients: list[tuple[int, float, float]],
    backward_s: float,
    forward_s: float,
    waits_for_all: bool,
    partition_bytes: int,
    credit_bytes: int,
    latency_s: float,
    ranks_per_machine: int,
    threads: int,
    sum_bytes_per_s: float,
) -> dict[str, float]:
    """Simulates a training step with the protocol's decisions (csrc/sim/scale_job.h).

    Gradients: (bytes, ready_s, needed_s) in the order of forward. Returns predicted_s (bound on
    communication alone), summed_s (first gradient to last sum), step_s (start of the backward pass
    to the end of the next forward pass), the number of partitions, and larger_partition_bytes (not
    0: a job has smaller ones, which would take too long to simulate).
    """
