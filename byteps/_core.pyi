"""The native core. Every function that can wait releases the GIL, and Ctrl-C interrupts it.

Failures are raised as the exceptions of `byteps.errors`.
"""

from collections.abc import Sequence
from typing import TypedDict, final

# Wire values (csrc/base/dtype.h).
DTYPE_CODES: dict[str, int]  # "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"
OP_CODES: dict[str, int]  # "sum", "average", "min", "max", "product", "broadcast", "seed", "accumulate"

@final
class NodeConfig:
    """Everything that the core must know; filled by `byteps.config`, checked again by `Node`.

    Keyword arguments set the attributes of the same names; those not given keep the defaults below.
    """

    role: str  # "worker", "server", "scheduler"
    rank: int  # of this worker, or -1: the scheduler numbers
    num_workers: int
    num_servers: int
    local_rank: int  # -1: the scheduler numbers by machine
    local_size: int  # -1: the scheduler counts by machine
    host_scheduler: bool  # this worker (rank 0) also runs the scheduler
    scheduler_by_rank_0: bool  # rank 0's process runs it (told in every process: for messages)
    scheduler_host: str  # name or address
    scheduler_ports: list[int]  # the scheduler takes the first free one; nodes look for it in this order
    scheduler_fd: int  # listening socket handed over by a launcher, or -1
    machine: str  # processes of equal ones sum on their machine first, or "" to find out
    shm: bool  # shared memory between ranks of one machine, where it works
    transport: str  # "auto", "tcp", "rdma"
    rdma_devices: str  # "mlx5_0:1,mlx5_1", or "": chosen
    rdma_gid_index: int  # -1: chosen
    rdma_traffic_class: int
    rdma_service_level: int
    rdma_timeout: int  # packets are sent again after 4.096 us * 2**rdma_timeout
    rdma_spin_us: int
    interface: str  # name of the interface whose address is handed out, or ""
    node_host: str  # address that is handed out, or ""
    secret: bytes  # empty: no TCP
    loopback_only: bool  # the secret is this user's own
    job_id: str
    version: str
    start_timeout_s: float  # all nodes must have joined by then
    timeout_s: float  # a node that is silent for so long is lost
    op_timeout_s: float  # a push_pull that lacks a rank for so long fails
    stall_warning_s: float  # ... is warned about
    partition_bytes: int
    credit_bytes: int
    autotune: bool  # rank 0 looks for better partition_bytes and credit_bytes while the job runs
    service_threads: int  # event loops (= shards) of the summation service in this process; 0: chosen by cores
    placement: str  # "auto", "allreduce", "ps", "weights:1,1,0.5"
    nic_mbps: float  # of the network card, per direction; 0: as the kernel says, else measured
    nic_probe: bool
    log_level: str  # "error", "warning", "info", "debug"
    def __init__(self, **fields: object) -> None: ...

@final
class Node:
    """One process's part in a job: joins when built, leaves at `shutdown`.

    All methods may be called from any thread.
    """

    def __init__(self, config: NodeConfig) -> None:
        """Joins the job and blocks until every node has (at most `start_timeout_s`)."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def places(self) -> list[tuple[int, int]]:
        """Of every worker, by rank: its local rank, and how many workers its machine has."""
    @property
    def num_servers(self) -> int: ...
    def declare(self, name: str, dtype: int, nbytes: int) -> None:
        """Asks for the tensor's placement ahead of its first push_pull. Does not wait. Not for what is kept."""

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
    ) -> int:
        """Starts one push_pull of `nbytes` bytes and returns its handle at once.

        The n-th push_pulls of a name on all ranks belong together, those that raise as well: then it fails for all.
        With a `step`, which all ranks count alike from 1, those of one step belong together, whatever was before it.
        Their `shape`, the `order` of its dimensions in memory (none: row-major) and the number of the `collective` that
        they are part of must be alike; None, and where nothing is said: not compared.

        `input_ptr` may equal `output_ptr`. Both must stay valid, and the input unchanged, until the handle is
        done; the caller keeps the tensors alive. Larger `priority` goes first. A name may be in flight once.
        `root` is used by "broadcast", "seed" and "accumulate" only.

        "seed" and "accumulate" are for a tensor that the summation services keep, and give its value as it is then.
        The root's values become it with the first "seed"; what others seed is not looked at, nor is what the root seeds
        later. With "accumulate" the input is added. All push_pulls of the name together count this rank's rounds: round
        r is answered once every rank has had round r - `staleness` (255: whatever they have had), see
        csrc/protocol/keeper.h. `staleness` is the same on all ranks and in all rounds.
        """

    def refuse(self, name: str, why: str, step: int = 0) -> None:
        """Counts a push_pull of this name, in this step, that was refused before it came here.

        It fails on all ranks.
        """

    def poll(self, handle: int) -> bool:
        """True if `wait` would return (or raise) at once."""

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        """Blocks until done, raises what went wrong, and frees the handle (also when it raises, but for a
        timeout: then the handle stays and `byteps.errors.TimeoutError` is raised).
        """

    def announce(self, handle: int) -> None:
        """Makes `next_done` give this handle once it is done. It still has to be waited for."""

    def next_done(self) -> int | None:
        """Blocks until an announced handle is done, and gives each of them once.

        After `shutdown` those that are left, then None.
        """

    def barrier(self) -> None:
        """Blocks until every worker has called it."""

    def failure(self) -> str:
        """Why the job has failed; "" while it is well."""

    def metrics(self) -> dict[str, float]:
        """Counters since the start: push_pulls, push_pull_bytes (tensor bytes completed), push_pull_us (summed
        time from start to completion), busy_us (time with at least one push_pull in flight), bytes_sent,
        bytes_received (payload, over all connections of this process), sums, sum_bytes, sum_us (service).
        As they are now: partition_factor (times the size of partitions as configured) and credit_bytes, which have
        changed plan_changes times (BYTEPS_AUTOTUNE). What RDMA cards know of this process's memory: rdma_regions and
        rdma_bytes now, rdma_registrations since the start.
        """

    def offer_to_c(self) -> None:
        """From now on the C functions (`C_API`) speak for this node, until they are told otherwise."""

    def wait_until_done(self) -> None:
        """For servers and schedulers: blocks until all workers have left; raises if the job failed."""

    def shutdown(self, cause: str = "", after: str = "") -> None:
        """Leaves the job; `cause`: the exception that ends this process, by which the job fails for all.

        Outstanding handles fail. Idempotent.
        """

# --- For adapters with a library of their own (csrc/c_api/): the address of the table of C functions, and the job of
# this process that they speak for.

C_API: int

@final
class AloneMetrics:
    """What came through the C functions while this rank was alone in its job."""

    @property
    def push_pulls(self) -> int: ...
    @property
    def push_pull_bytes(self) -> int: ...

def enter_c_job_alone() -> AloneMetrics:
    """The C functions speak for a rank that is alone: every push_pull is its own result."""

def leave_c_job(why: str) -> None:
    """The C functions fail with `why`, as NotInitializedError."""

def abandon_c_job(why: str) -> None:
    """`leave_c_job` in a forked child."""

def note_descriptor(fd: int) -> None:
    """`close_descriptors_in_child` closes this one as well; it stays open as long as this process lives."""

def close_descriptors_in_child() -> None:
    """In a forked child: closes its copies of connections and the like, so that others notice its parent's end."""

class Memory:
    """Zeros that stay where they are until this object and all views of it are gone; `nbytes` rounded up to whole
    pages. An RDMA card is told of it once, while of other memory it has to be told for every push_pull. Supports the
    buffer protocol.

    Raises:
        MemoryError: there is not so much.
    """

    def __init__(self, nbytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def viable_transports() -> dict[str, str]:
    """Transport -> "" if this machine can use it, else the reason."""

def isa_levels() -> dict[str, bool]:
    """Instruction set -> whether this machine has it ("scalar", "avx2", "avx512")."""

def reduce_n(dst_ptr: int, src_ptrs: list[int], count: int, dtype: int, op: int, threads: int = 1) -> None:
    """The service's kernel, for tests and benchmarks: dst[i] = op over srcs in order; `count` elements."""

def listen_address(interface: str, node_host: str, scheduler_host: str) -> str:
    """The address that this process would hand out, chosen as `Node` chooses it."""

def network_interface(address: str) -> tuple[str, float]:
    """The interface that carries `address` ("": none here), and its speed in Mbit/s (0: the kernel does not tell)."""

# --- RDMA (csrc/transport/rdma/), for `byteps doctor`. The TypedDicts are plain dicts.

class RdmaGid(TypedDict):
    index: int
    gid: str  # as an IPv6 address
    kind: str  # "RoCE v1", "RoCE v2", "InfiniBand"
    interface: str  # of RoCE: whose address it is, or ""

class RdmaPort(TypedDict):
    device: str
    port: int
    is_ethernet: bool  # RoCE; else InfiniBand
    state: str  # "ACTIVE", "DOWN"
    physical: str  # "LinkUp", "Disabled"
    mbps: int  # 0: unknown
    numa_node: int  # -1: unknown, or there is one only
    lid: int
    interface: str  # of RoCE, or ""
    gids: list[RdmaGid]
    why_not: str  # "" if it can be used, else the reason and the remedy

class RdmaTrial(TypedDict):
    gid: str  # "::ffff:10.0.0.2 (RoCE v2, index 1)"
    gid_index: int
    mtu_bytes: int  # of a packet's payload
    interface: str
    on_demand_paging: bool
    why_no_connections: str  # "" if a queue pair can be made
    why_no_memory: str  # "" if the card takes as much as a connection needs at least

class PeerSpeed(TypedDict):
    round_trip_us: float  # the median, of frames of 4 KiB
    bytes_per_s: float  # of payload, each way at once, in frames of 1 MiB; by one connection

class PeerRail(PeerSpeed):
    own: str  # this machine's card
    other: str  # address and card that answered
    failure: str  # "" if it works, else at what step it failed and why

class PeerReport(TypedDict):
    host: str
    tcp: PeerSpeed
    why_no_rdma: str  # "": see `rails`
    rdma_is_absent: bool  # `why_no_rdma` is no fault: there is no device, or nobody wants it
    rails: list[PeerRail]  # one for each card of this machine

def rdma_library() -> str:
    """Why libibverbs cannot be used, or an empty text."""

def rdma_ports() -> list[RdmaPort]:
    """All RDMA ports of this machine, from sysfs."""

def rdma_rails(config: NodeConfig, address: str) -> list[tuple[str, int]]:
    """Devices and ports that a process uses that hands out `address`, in order; raises if there are none."""

def try_rdma_port(config: NodeConfig, device: str, port: int, address: str) -> RdmaTrial:
    """Opens it as a job does, and closes it; raises if it cannot be opened."""

def check_peer(config: NodeConfig, address: str, peer: str) -> PeerReport:
    """Whether the PeerListener at `peer` ("10.0.0.2:9000") can be reached by a process that hands out `address`.

    Each step has `config.timeout_s`. Raises if the peer cannot be reached by TCP, or is no PeerListener.
    """

@final
class PeerListener:
    """Listens by TCP, and by RDMA where it works, and answers `check_peer` of other machines, on its own thread."""

    def __init__(self, config: NodeConfig, address: str, port: int) -> None:
        """`port` 0: any."""

    @property
    def address(self) -> str: ...
    @property
    def why_no_rdma(self) -> str: ...
    def next(self, timeout_s: float) -> str:
        """Blocks until the next connection has ended, and says which; `byteps.errors.TimeoutError` if none has."""

# --- Planning (csrc/protocol/placement.h, csrc/sim/scale_job.h). Speeds are those of network cards, in Mbit/s each way;
# sites are the worker machines, then the servers.

def site_shares(machines_mbps: list[float], servers_mbps: list[float], placement: str) -> list[float]:
    """Part of the bytes that each site sums; `placement` as in NodeConfig. The sum is 1."""

def predicted_seconds(machines_mbps: list[float], servers_mbps: list[float], shares: list[float], nbytes: int) -> float:
    """What a push_pull of `nbytes` bytes takes at least; infinite if no speed is known."""

def model_layers(name: str) -> tuple[list[tuple[int, float]], float]:
    """(gradient bytes, relative work) of the layers of "vgg16", "resnet50" or "gpt2", and assumed seconds a step."""

def simulate_step(
    machines_mbps: list[float],
    servers_mbps: list[float],
    placement: str,
    layers: list[tuple[int, float]],
    compute_s: float,
    partition_bytes: int,
    credit_bytes: int,
    latency_s: float,
) -> dict[str, float]:
    """One training step by the protocol's code on a simulated network.

    predicted_s (bound on communication alone), summed_s (first gradient to last sum), step_s (start of the backward
    pass to the end of the next forward pass), messages (cost of the simulation: half a million a second).
    """
