"""The table of all settings, and the only module that reads the environment.

`Config.from_env` reads the environment. Later changes of it have no effect.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from byteps.config_reader import Reader
from byteps.errors import InvalidArgumentError
from byteps.knob import (
    Knob,
    choice,
    derived,
    either,
    flag,
    integer,
    knob,
    number,
    port,
    seconds,
    size_bytes,
    unbounded,
    word,
)
from byteps.secret_file import folders_of_user, secret_of_user
from byteps.version import package_version

if TYPE_CHECKING:
    from byteps import _core

__all__ = ["STARTED", "Config", "process_environment"]

log = logging.getLogger("byteps")

STARTED = ".started"  # added to BYTEPS_ERROR_FILE: a file that a process makes when it takes part in its job
_MAX_RANKS = 1 << 14
_MAX_SECONDS = 7 * 24 * 3600.0
_LEVELS = {"trace": "debug", "fatal": "error", "warn": "warning"}
_HOST = word(r"[A-Za-z0-9._:%-]{1,255}", "a host name or an address")
_WEIGHTS = word(
    r"weights:(?=.*[1-9])[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?)*",
    "weights: with one number for each worker machine and each server, not all 0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The checked settings of one process.

    Fields of `_core.NodeConfig` have the same names here.
    """

    # --- identity of this process
    role: str = knob(
        "worker",
        "DMLC_ROLE",
        parse=choice("worker", "server", "scheduler", "coordinator"),
        doc="Role of this process. A coordinator decides which workers take part in an elastic job "
        "([elastic](elastic.md)).",
    )
    num_machines: int = knob(
        0, "DMLC_NUM_WORKER", parse=integer(1, _MAX_RANKS), unit="machines", doc="Number of worker machines in the job."
    )
    machine_id: int = knob(
        -1, "DMLC_WORKER_ID", parse=integer(0, _MAX_RANKS - 1), doc="Number of this worker machine, from 0."
    )
    local_rank: int = knob(
        -1, "BYTEPS_LOCAL_RANK", parse=integer(0, _MAX_RANKS - 1), doc="Number of this worker on its machine, from 0."
    )
    local_size: int = knob(
        -1,
        "BYTEPS_LOCAL_SIZE",
        parse=integer(1, _MAX_RANKS),
        unit="processes",
        doc="Number of workers on each machine.",
    )
    global_rank: int = knob(
        -1,
        "BYTEPS_GLOBAL_RANK",
        parse=integer(0, _MAX_RANKS - 1),
        doc="Rank of this worker, instead of the derived one.",
    )
    rank: int = derived(
        -1, "DMLC_WORKER_ID x BYTEPS_LOCAL_SIZE + BYTEPS_LOCAL_RANK, or the rank from torchrun, mpirun or srun."
    )
    size: int = derived(0, "Number of workers in the job: DMLC_NUM_WORKER x BYTEPS_LOCAL_SIZE; 0: the workers tell it.")
    num_servers: int = knob(
        0,
        "DMLC_NUM_SERVER",
        parse=integer(0, _MAX_RANKS),
        unit="processes",
        doc="Number of server processes in the job.",
    )
    force_distributed: bool = knob(
        False,
        "BYTEPS_FORCE_DISTRIBUTED",
        parse=flag,
        doc="Use the scheduler and servers also with a single worker machine.",
    )

    # --- elastic jobs
    elastic: bool = knob(
        False,
        "BYTEPS_ELASTIC",
        parse=flag,
        doc="This worker takes part in an elastic job, whose coordinator is at DMLC_PS_ROOT_URI and "
        "DMLC_PS_ROOT_PORT ([elastic](elastic.md)). bpslaunch sets it.",
    )
    min_workers: int = knob(
        1,
        "BYTEPS_MIN_WORKERS",
        parse=integer(1, _MAX_RANKS),
        unit="processes",
        doc="An elastic job with fewer workers waits for others at its next commit. The coordinator reads it.",
    )
    max_workers: int = knob(
        0,
        "BYTEPS_MAX_WORKERS",
        parse=integer(0, _MAX_RANKS),
        unit="processes",
        doc="Further workers of an elastic job wait until others are lost; 0: no limit. The coordinator reads it.",
    )
    initial_workers: int = knob(
        0,
        "BYTEPS_INITIAL_WORKERS",
        parse=integer(0, _MAX_RANKS),
        unit="processes",
        doc="An elastic job begins when so many workers have come, or with fewer, but at least BYTEPS_MIN_WORKERS, "
        "after BYTEPS_START_TIMEOUT_S; 0: BYTEPS_MIN_WORKERS. The coordinator reads it.",
    )
    elastic_timeout_s: float = knob(
        600.0,
        "BYTEPS_ELASTIC_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="An elastic job that has fewer than BYTEPS_MIN_WORKERS for this time fails. The coordinator reads it.",
    )
    gather_s: float = knob(
        0.5,
        "BYTEPS_GATHER_S",
        parse=seconds(0, _MAX_SECONDS),
        unit="s",
        doc="Workers that come to an elastic job within this time enter it together. The coordinator reads it.",
    )

    # --- connections to other processes
    scheduler_host: str = knob("", "DMLC_PS_ROOT_URI", parse=_HOST, doc="Host of the scheduler.")
    scheduler_ports: tuple[int, ...] = knob((), "DMLC_PS_ROOT_PORT", parse=port, doc="Port of the scheduler.")
    host_scheduler: bool = knob(
        False, "BYTEPS_HOST_SCHEDULER", parse=flag, doc="Worker 0 runs the scheduler, without a scheduler process."
    )
    scheduler_fd: int = knob(
        -1,
        "BYTEPS_SCHEDULER_FD",
        parse=integer(0, 1 << 20),
        doc="Descriptor of the scheduler's listening socket, which bpslaunch opens and worker 0 inherits.",
    )
    machine: str = knob(
        "",
        "BYTEPS_MACHINE",
        parse=word(r"[A-Za-z0-9._:-]{1,128}", "up to 128 letters, digits and . _ : -"),
        doc="Name of this machine. Tensors of ranks on one machine are summed first, through shared memory if "
        "possible. If not set, ranks with the same boot id and the same network namespace are on one machine.",
    )
    shm: bool = knob(
        True,
        "BYTEPS_SHM",
        parse=flag,
        doc="Ranks of one machine exchange tensors through shared memory if possible; 0: through TCP.",
    )
    transport: str = knob(
        "auto",
        "BYTEPS_TRANSPORT",
        parse=choice("auto", "tcp", "rdma"),
        doc="Transport between machines. rdma: InfiniBand or RoCE, or an error; auto: rdma if it works, otherwise tcp.",
    )
    rdma_devices: str = knob(
        "",
        "BYTEPS_RDMA_DEVICES",
        parse=word(
            r"[A-Za-z0-9_.-]{1,64}(:[0-9]{1,3})?(,[A-Za-z0-9_.-]{1,64}(:[0-9]{1,3})?)*",
            "devices, such as mlx5_0,mlx5_1:2",
        ),
        doc="RDMA devices and optionally their ports, in the order in which all machines use them. If not set, the "
        "fastest ones near the cores of this process.",
    )
    rdma_gid_index: int = knob(
        -1,
        "BYTEPS_RDMA_GID_INDEX",
        parse=integer(-1, 255),
        doc="Index in the GID table of a RoCE port; -1: the GID of this process's address, RoCE v2 before v1.",
    )
    rdma_traffic_class: int = knob(
        0,
        "BYTEPS_RDMA_TRAFFIC_CLASS",
        parse=integer(0, 255),
        doc="Traffic class of RDMA packets. With RoCE v2 it is in the IP header; its upper six bits are the DSCP.",
    )
    rdma_service_level: int = knob(
        0,
        "BYTEPS_RDMA_SERVICE_LEVEL",
        parse=integer(0, 15),
        doc="Service level of RDMA packets; with RoCE in a VLAN, the priority.",
    )
    rdma_timeout: int = knob(
        18,
        "BYTEPS_RDMA_TIMEOUT",
        parse=integer(1, 31),
        doc="Exponent N of the retransmission timeout: an RDMA packet without an answer is sent again after "
        "4.096 us x 2^N, six times. Network cards may wait up to four times as long.",
    )
    rdma_spin_us: int = knob(
        20,
        "BYTEPS_RDMA_SPIN_US",
        parse=integer(0, 1_000_000),
        unit="us",
        doc="A thread polls for this time for the next RDMA completion before it sleeps, if recent completions came "
        "faster than that. 0: never. No thread polls if the process has a single core.",
    )
    interface: str = knob(
        "",
        "DMLC_INTERFACE",
        parse=word(r"[A-Za-z0-9_.:@-]{1,64}", "the name of a network interface"),
        doc="Network interface whose address this process advertises. If not set, the one of the route to the "
        "scheduler.",
    )
    node_host: str = knob("", "DMLC_NODE_HOST", parse=_HOST, doc="Address that this process advertises.")
    secret: str = knob(
        "",
        "BYTEPS_SECRET",
        parse=str,
        secret=True,
        doc="Secret that all processes of the job share. If not set, a job of one machine uses this user's own "
        "([security](security.md)). Jobs of several machines require it.",
    )
    secret_file: str = knob(
        "", "BYTEPS_SECRET_FILE", parse=str, doc="File with the secret, which no other user can read or change."
    )
    job_id: str = knob(
        "byteps",
        "BYTEPS_JOB_ID",
        parse=word(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", "up to 64 letters, digits and . _ : -"),
        doc="Name of the job, which separates jobs that share a machine or a secret.",
    )

    # --- time limits
    start_timeout_s: float = knob(
        300.0,
        "BYTEPS_START_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="Time limit for all processes to join the job.",
    )
    timeout_s: float = knob(
        30.0,
        "BYTEPS_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A process that is silent for this time is lost.",
    )
    op_timeout_s: float = knob(
        600.0,
        "BYTEPS_OP_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A push_pull fails if a rank does not take part in it for this time.",
    )
    stall_warning_s: float = knob(
        60.0,
        "BYTEPS_STALL_WARNING_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A warning is logged if a rank does not take part in a push_pull for this time.",
    )

    # --- transfer and summation of tensors
    partition_bytes: int = knob(
        0,
        "BYTEPS_PARTITION_BYTES",
        parse=size_bytes(4096, 1 << 30, clips=True),
        unit="bytes",
        doc="Maximum size of a partition of a tensor, at most 1 GiB; 0: chosen by the size of the tensor, the number "
        "of machines and the speed of the network. Partitions are larger if a tensor would have more than 262,144. "
        "The value of the scheduler's process is used.",
    )
    credit_bytes: int = knob(
        256 << 10,
        "BYTEPS_SCHEDULING_CREDIT",
        parse=size_bytes(0, 1 << 40),
        unit="bytes",
        doc="Maximum number of bytes in the network, which more urgent partitions cannot overtake. Values up to 1023 "
        "count partitions, as in the original BytePS; 0: the default.",
    )
    autotune: bool = knob(
        False,
        "BYTEPS_AUTOTUNE",
        parse=flag,
        doc="Search for the partition size and credit with the shortest steps while the job runs. "
        "Must be the same in all processes.",
    )
    pinned_bytes: int = knob(
        2 << 30,
        "BYTEPS_PINNED_BYTES",
        parse=size_bytes(0, 1 << 40),
        unit="bytes",
        doc="Maximum size of the host memory that a process pins for copies from and to its GPUs. If that is in use, "
        "or cannot be pinned, tensors are copied through other memory, which is slower ([GPUs](gpu.md)).",
    )
    service_threads: int = knob(
        0,
        "BYTEPS_SERVER_ENGINE_THREAD",
        parse=integer(0, 64),
        unit="threads",
        doc="Number of threads of the summation service in this process; 0: chosen by the number of cores.",
    )
    placement: str = knob(
        "auto",
        "BYTEPS_PLACEMENT",
        parse=either(choice("auto", "allreduce", "ps"), _WEIGHTS),
        doc="Processes that sum tensors. allreduce: workers; ps: servers; auto: the fastest combination; "
        "weights:1,1,0.5: these shares of the worker machines, followed by those of the servers.",
    )
    nic_mbps: float = knob(
        0.0,
        "BYTEPS_NIC_MBPS",
        parse=number(0, 1e9),
        unit="Mbit/s",
        doc="Speed of this machine's network card in each direction, for the placement auto; 0: the speed that the "
        "kernel reports, or a measurement when the job starts, and then what the traffic shows.",
    )
    nic_probe: bool = knob(
        True,
        "BYTEPS_NIC_PROBE",
        parse=flag,
        doc="A job of several machines measures unknown speeds of network cards when it starts, and over long paths "
        "also whether several connections are faster. This takes a second, or some seconds where round trips are "
        "long. 0: no measurement, and nothing is learned from traffic. The value of the scheduler's process is used.",
    )

    failover: str = knob(
        "auto",
        "BYTEPS_FAILOVER",
        parse=choice("auto", "on", "off", aliases={"1": "auto", "0": "off"}),
        doc="Whether training goes on when a server or the scheduler is lost (docs/failures.md). auto and on: it does, "
        "which costs nothing where neither can be lost; off: the job ends. The value of the scheduler's process is "
        "used.",
    )

    # --- consistency between ranks
    asynchronous: bool = knob(
        False,
        "BYTEPS_ENABLE_ASYNC",
        parse=flag,
        doc="Asynchronous training with byteps.torch (DistributedOptimizer) and byteps.mxnet: the summation services "
        "hold the weights.",
    )
    staleness: float = knob(
        math.inf,
        "BYTEPS_STALENESS",
        parse=either(integer(0, 254), unbounded),
        unit="steps",
        doc="With BYTEPS_ENABLE_ASYNC: maximum number of steps that a rank may be ahead of the slowest one; 0: "
        "training is synchronous; inf: no limit.",
    )

    differences: str = knob(
        "warn",
        "BYTEPS_DIFFERENCES",
        parse=choice("warn", "error", "ignore"),
        doc="Reaction to ranks whose weights or hyperparameters, such as the learning rate, differ at the first step "
        "in a job: a warning that names the ranks, an error on all ranks, or no comparison.",
    )

    # --- this process
    error_file: str = knob(
        "", "BYTEPS_ERROR_FILE", parse=str, doc="File for the cause of this process's end, which bpslaunch reads."
    )
    grace_s: float = knob(
        30.0,
        "BYTEPS_GRACE_S",
        parse=seconds(0, _MAX_SECONDS),
        unit="s",
        doc="Time between SIGTERM and SIGKILL of bpslaunch.",
    )
    numa_on: bool = knob(
        True, "BYTEPS_NUMA_ON", parse=flag, doc="bpslaunch binds each process to its share of the NUMA nodes."
    )
    log_level: str = knob(
        "warning",
        "BYTEPS_LOG_LEVEL",
        parse=choice("error", "warning", "info", "debug", aliases=_LEVELS),
        doc="Minimum severity of the log lines on standard error.",
    )

    # Source of each field's value.
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
    # Possible folders of this user's own secret.
    secret_folders: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Reads the settings in `environ`, by default this process's environment. Logs warnings.

        Raises:
            InvalidArgumentError: some settings are invalid; the message names all of them.
        """
        config = cls.parse(process_environment() if environ is None else environ)
        if config.rank <= 0:  # once in the job
            for warning in config.warnings:
                log.warning(warning)
        return config

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> Config:
        """`from_env` without logging. Reads only `environ` and the file with the secret."""
        reader = Reader(environ, cls.knobs())
        if reader.faults:
            raise InvalidArgumentError("invalid settings:\n  " + "\n  ".join(reader.faults))
        folders = folders_of_user(environ)
        return cls(**reader.values, sources=reader.sources, warnings=tuple(reader.warnings), secret_folders=folders)

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Returns the row of each field, in the order of the table above."""
        return {f.name: f.metadata["knob"] for f in fields(cls) if "knob" in f.metadata}

    @property
    def is_single_process(self) -> bool:
        """Whether the job has only this worker, so that every push_pull is the identity."""
        is_alone = self.size == 1 and self.num_servers == 0 and not self.force_distributed
        return self.role == "worker" and is_alone and not self.elastic

    @property
    def is_needless(self) -> bool:
        """Whether this scheduler or server is not needed: there is a single worker machine."""
        one_machine = self.num_machines == 1 and not self.host_scheduler
        return self.role in {"server", "scheduler"} and one_machine and not self.force_distributed

    def node_fields(self) -> dict[str, Any]:
        """Returns keyword arguments of `_core.NodeConfig`."""
        from byteps import _core

        hosts = self.role == "coordinator" or (self.host_scheduler and self.role == "worker" and self.rank == 0)
        return {name: getattr(self, name) for name in _core.NodeConfig.FIELDS if name in self.knobs()} | {
            "version": package_version(),
            "failover": self.failover != "off",
            "num_workers": self.size,
            "host_scheduler": hosts and self.role == "worker",
            "scheduler_by_rank_0": self.host_scheduler,
            "scheduler_fd": self.scheduler_fd if hosts else -1,
            "scheduler_ports": list(self.scheduler_ports),
            "secret": self.secret.encode(errors="surrogateescape"),
        }

    def to_node_config(self) -> _core.NodeConfig:
        """Returns the configuration of a Node.

        It has a copy of the scheduler's socket, since every Node closes its own. From now on, child
        processes do not inherit the socket: one that outlives this process would accept connections
        for a scheduler that is gone.

        If there is no secret, it has this user's own, which is created at the first use and is
        valid on this machine only.

        Raises:
            InvalidArgumentError: the socket that bpslaunch opened is closed, or there is no secret.
        """
        from byteps import _core

        node_fields = self.node_fields()
        if not self.secret:
            node_fields |= {"secret": self._secret_of_user(), "loopback_only": True}
        if node_fields["scheduler_fd"] >= 0:
            try:
                os.set_inheritable(self.scheduler_fd, False)
                node_fields["scheduler_fd"] = os.dup(self.scheduler_fd)
            except OSError as error:
                raise InvalidArgumentError(
                    f"BYTEPS_SCHEDULER_FD={self.scheduler_fd}: {error.strerror}: expected the socket that bpslaunch "
                    "opened; does a program between bpslaunch and this one close it?"
                ) from error
            # The check excludes sockets that tests pass.
            if process_environment().get("BYTEPS_SCHEDULER_FD") == str(self.scheduler_fd):
                _core.note_descriptor(self.scheduler_fd)
        return _core.NodeConfig(**node_fields)

    def _secret_of_user(self) -> bytes:
        try:
            return secret_of_user(self.secret_folders).encode()
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error


def process_environment() -> dict[str, str]:
    """Returns a copy of this process's environment."""
    return dict(os.environ)
