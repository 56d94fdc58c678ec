"""All settings of byteps in one table, and the one place that reads the environment.

The environment counts when `Config.from_env` is called; changing it afterwards has no effect.
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

__all__ = ["Config", "process_environment"]

log = logging.getLogger("byteps")

_MAX_RANKS = 1 << 14
_MAX_SECONDS = 7 * 24 * 3600.0
_LEVELS = {"trace": "debug", "fatal": "error", "warn": "warning"}
_HOST = word(r"[A-Za-z0-9._:%-]{1,255}", "a host name or an address")
_WEIGHTS = word(
    r"weights:(?=.*[1-9])[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?)*",
    "weights: with one number for each worker machine and each server, not all 0",
)
_NODE_FIELDS = (
    *("role", "rank", "num_servers", "local_rank", "local_size", "scheduler_host", "machine", "shm", "interface"),
    *("transport", "rdma_devices", "rdma_gid_index", "rdma_traffic_class", "rdma_service_level", "rdma_timeout"),
    "rdma_spin_us",
    *("node_host", "job_id", "start_timeout_s", "timeout_s", "op_timeout_s", "stall_warning_s", "partition_bytes"),
    *("credit_bytes", "autotune", "service_threads", "placement", "nic_mbps", "nic_probe", "log_level"),
)  # those with the same name and type in _core.NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One process's settings, checked. Fields that mean the same as in `_core.NodeConfig` have the same name."""

    # --- who this process is
    role: str = knob(
        "worker", "DMLC_ROLE", parse=choice("worker", "server", "scheduler"), doc="Part that this process plays."
    )
    num_machines: int = knob(
        0, "DMLC_NUM_WORKER", parse=integer(1, _MAX_RANKS), unit="machines", doc="Worker machines in the job."
    )
    machine_id: int = knob(
        -1, "DMLC_WORKER_ID", parse=integer(0, _MAX_RANKS - 1), doc="This worker machine's number, from 0."
    )
    local_rank: int = knob(
        -1, "BYTEPS_LOCAL_RANK", parse=integer(0, _MAX_RANKS - 1), doc="This worker's number on its machine, from 0."
    )
    local_size: int = knob(
        -1, "BYTEPS_LOCAL_SIZE", parse=integer(1, _MAX_RANKS), unit="processes", doc="Workers on each machine."
    )
    global_rank: int = knob(
        -1, "BYTEPS_GLOBAL_RANK", parse=integer(0, _MAX_RANKS - 1), doc="This worker's rank, if not as derived."
    )
    rank: int = derived(
        -1, "DMLC_WORKER_ID x BYTEPS_LOCAL_SIZE + BYTEPS_LOCAL_RANK, or as torchrun, mpirun or srun say."
    )
    size: int = derived(0, "Workers in the job: DMLC_NUM_WORKER x BYTEPS_LOCAL_SIZE; 0: learned from the workers.")
    num_servers: int = knob(
        0, "DMLC_NUM_SERVER", parse=integer(0, _MAX_RANKS), unit="processes", doc="Server processes in the job."
    )
    force_distributed: bool = knob(
        False, "BYTEPS_FORCE_DISTRIBUTED", parse=flag, doc="Use scheduler and servers even with one worker machine."
    )

    # --- where the others are
    scheduler_host: str = knob("", "DMLC_PS_ROOT_URI", parse=_HOST, doc="Host of the scheduler.")
    scheduler_ports: tuple[int, ...] = knob((), "DMLC_PS_ROOT_PORT", parse=port, doc="Port of the scheduler.")
    host_scheduler: bool = knob(
        False, "BYTEPS_HOST_SCHEDULER", parse=flag, doc="Worker 0 runs the scheduler; there is no scheduler process."
    )
    scheduler_fd: int = knob(
        -1,
        "BYTEPS_SCHEDULER_FD",
        parse=integer(0, 1 << 20),
        doc="Listening socket for the scheduler, which bpslaunch opens and worker 0 inherits.",
    )
    machine: str = knob(
        "",
        "BYTEPS_MACHINE",
        parse=word(r"[A-Za-z0-9._:-]{1,128}", "up to 128 letters, digits and . _ : -"),
        doc="Ranks with the same word are summed with each other first, through shared memory where they can. "
        "Without: those of the same boot of the same kernel and the same network namespace.",
    )
    shm: bool = knob(
        True,
        "BYTEPS_SHM",
        parse=flag,
        doc="Ranks of one machine exchange tensors through shared memory where they can; else through TCP.",
    )
    transport: str = knob(
        "auto",
        "BYTEPS_TRANSPORT",
        parse=choice("auto", "tcp", "rdma"),
        doc="What carries tensors between machines: rdma: InfiniBand or RoCE, or an error; auto: that where it works, "
        "else tcp.",
    )
    rdma_devices: str = knob(
        "",
        "BYTEPS_RDMA_DEVICES",
        parse=word(
            r"[A-Za-z0-9_.-]{1,64}(:[0-9]{1,3})?(,[A-Za-z0-9_.-]{1,64}(:[0-9]{1,3})?)*",
            "devices, such as mlx5_0,mlx5_1:2",
        ),
        doc="RDMA devices, and ports of theirs, in the order in which all machines use them; else the fastest ones "
        "near this process's cores.",
    )
    rdma_gid_index: int = knob(
        -1,
        "BYTEPS_RDMA_GID_INDEX",
        parse=integer(-1, 255),
        doc="Which entry of a RoCE port's table of GIDs is used; -1: that of this process's address, "
        "RoCE v2 before v1.",
    )
    rdma_traffic_class: int = knob(
        0,
        "BYTEPS_RDMA_TRAFFIC_CLASS",
        parse=integer(0, 255),
        doc="Traffic class of RDMA packets: with RoCE v2 the IP header's, whose upper six bits are the DSCP.",
    )
    rdma_service_level: int = knob(
        0,
        "BYTEPS_RDMA_SERVICE_LEVEL",
        parse=integer(0, 15),
        doc="Service level of RDMA packets: with RoCE in a VLAN its priority.",
    )
    rdma_timeout: int = knob(
        18,
        "BYTEPS_RDMA_TIMEOUT",
        parse=integer(1, 31),
        doc="N: an RDMA packet without an answer is sent again after 4.096 us x 2^N, six times; cards may take up to "
        "four times as long.",
    )
    rdma_spin_us: int = knob(
        20,
        "BYTEPS_RDMA_SPIN_US",
        parse=integer(0, 1_000_000),
        unit="us",
        doc="A thread whose RDMA completions have been coming faster than this looks for the next one for so long "
        "before it sleeps; 0: never. Not where it has one core only.",
    )
    interface: str = knob(
        "",
        "DMLC_INTERFACE",
        parse=word(r"[A-Za-z0-9_.:@-]{1,64}", "the name of a network interface"),
        doc="Network interface whose address this process hands out; else the one on the route to the scheduler.",
    )
    node_host: str = knob("", "DMLC_NODE_HOST", parse=_HOST, doc="Address that this process hands out.")
    secret: str = knob(
        "",
        "BYTEPS_SECRET",
        parse=str,
        secret=True,
        doc="Proof of belonging to the job. Without one, a job of one machine uses this user's own "
        "([security](security.md)); one of several machines needs one.",
    )
    secret_file: str = knob(
        "", "BYTEPS_SECRET_FILE", parse=str, doc="File that holds the secret, which no other user can read or change."
    )
    job_id: str = knob(
        "byteps",
        "BYTEPS_JOB_ID",
        parse=word(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", "up to 64 letters, digits and . _ : -"),
        doc="Keeps jobs apart that share a machine or a secret.",
    )

    # --- how long to wait
    start_timeout_s: float = knob(
        300.0,
        "BYTEPS_START_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="All processes must have joined by then.",
    )
    timeout_s: float = knob(
        30.0,
        "BYTEPS_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A process silent for so long counts as lost.",
    )
    op_timeout_s: float = knob(
        600.0,
        "BYTEPS_OP_TIMEOUT_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A push_pull in which a rank does not take part for so long fails.",
    )
    stall_warning_s: float = knob(
        60.0,
        "BYTEPS_STALL_WARNING_S",
        parse=seconds(0.1, _MAX_SECONDS),
        unit="s",
        doc="A push_pull in which a rank does not take part for so long is warned about.",
    )

    # --- how tensors travel
    partition_bytes: int = knob(
        0,
        "BYTEPS_PARTITION_BYTES",
        parse=size_bytes(4096, 1 << 30, clips=True),
        unit="bytes",
        doc="Tensors are cut into parts of at most so many bytes, and of at most 1 GiB; 0: by their size, the number "
        "of machines and the speed of the network. Larger where there would be more than 262,144 of them. What the "
        "scheduler's process says counts.",
    )
    credit_bytes: int = knob(
        256 << 10,
        "BYTEPS_SCHEDULING_CREDIT",
        parse=size_bytes(0, 1 << 40),
        unit="bytes",
        doc="Bytes handed to the network ahead of what may become more urgent. Up to 1023 it counts partitions, "
        "as in the original BytePS; 0 is the default.",
    )
    autotune: bool = knob(
        False,
        "BYTEPS_AUTOTUNE",
        parse=flag,
        doc="Partition size and credit are changed while the job runs, and kept where steps get shorter; "
        "the same in all processes.",
    )
    service_threads: int = knob(
        0,
        "BYTEPS_SERVER_ENGINE_THREAD",
        parse=integer(0, 64),
        unit="threads",
        doc="Threads of the summation service in this process; 0: chosen by the number of cores.",
    )
    placement: str = knob(
        "auto",
        "BYTEPS_PLACEMENT",
        parse=either(choice("auto", "allreduce", "ps"), _WEIGHTS),
        doc="Where tensors are summed: allreduce: in the workers; ps: on the servers; auto: wherever is fastest; "
        "weights:1,1,0.5: in these proportions on the worker machines, then the servers, in order.",
    )
    nic_mbps: float = knob(
        0.0,
        "BYTEPS_NIC_MBPS",
        parse=number(0, 1e9),
        unit="Mbit/s",
        doc="Speed of this machine's network card, each way, by which auto shares out the work; 0: as the kernel says, "
        "else measured when the job starts.",
    )
    nic_probe: bool = knob(
        True,
        "BYTEPS_NIC_PROBE",
        parse=flag,
        doc="A job of several machines measures unknown speeds of network cards when it starts, which takes a second; "
        "0: they stay unknown. The process with the scheduler decides.",
    )

    # --- how ranks keep step
    asynchronous: bool = knob(
        False,
        "BYTEPS_ENABLE_ASYNC",
        parse=flag,
        doc="byteps.torch (DistributedOptimizer) and byteps.mxnet train asynchronously: the summation services keep "
        "the weights.",
    )
    staleness: float = knob(
        math.inf,
        "BYTEPS_STALENESS",
        parse=either(integer(0, 254), unbounded),
        unit="steps",
        doc="With BYTEPS_ENABLE_ASYNC: how many steps a rank may be ahead of the slowest one; 0: none, which is "
        "synchronous; inf: any number.",
    )

    differences: str = knob(
        "warn",
        "BYTEPS_DIFFERENCES",
        parse=choice("warn", "error", "ignore"),
        doc="What happens if the ranks' weights or hyperparameters (the learning rate above all) differ at their first "
        "step in a job, so that they would train apart: a warning that names the ranks, an error on all of them, or "
        "nothing, without a look at them.",
    )

    # --- this process
    error_file: str = knob(
        "", "BYTEPS_ERROR_FILE", parse=str, doc="File in which this process says what ends it; bpslaunch reads it."
    )
    grace_s: float = knob(
        30.0, "BYTEPS_GRACE_S", parse=seconds(0, _MAX_SECONDS), unit="s", doc="From bpslaunch's SIGTERM to its SIGKILL."
    )
    numa_on: bool = knob(
        True, "BYTEPS_NUMA_ON", parse=flag, doc="bpslaunch binds each process to its share of the NUMA nodes."
    )
    log_level: str = knob(
        "warning",
        "BYTEPS_LOG_LEVEL",
        parse=choice("error", "warning", "info", "debug", aliases=_LEVELS),
        doc="Log lines of this level and of graver ones are written to standard error.",
    )

    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # field -> where it came from
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
    secret_folders: tuple[str, ...] = field(default=(), repr=False, compare=False)  # of this user's own secret

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """The settings in `environ` (default: this process's environment), with its warnings logged.

        Raises:
            InvalidArgumentError: names everything that is wrong, not only the first fault.
        """
        config = cls.parse(process_environment() if environ is None else environ)
        if config.rank <= 0:  # once for the job
            for warning in config.warnings:
                log.warning(warning)
        return config

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> Config:
        """`from_env` without logging. Reads nothing but `environ` and the file with the secret."""
        reader = Reader(environ, cls.knobs())
        if reader.faults:
            raise InvalidArgumentError("settings that cannot be used:\n  " + "\n  ".join(reader.faults))
        folders = folders_of_user(environ)
        return cls(**reader.values, sources=reader.sources, warnings=tuple(reader.warnings), secret_folders=folders)

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Field -> what is known about it, in the order of the table above."""
        return {f.name: f.metadata["knob"] for f in fields(cls) if "knob" in f.metadata}

    @property
    def is_single_process(self) -> bool:
        """A worker without any other process: nothing to connect to, every push_pull is the identity."""
        return self.role == "worker" and self.size == 1 and self.num_servers == 0 and not self.force_distributed

    @property
    def is_needless(self) -> bool:
        """A scheduler or server for one worker machine, whose workers sum by themselves (as in the original)."""
        one_machine = self.num_machines == 1 and not self.host_scheduler
        return self.role != "worker" and one_machine and not self.force_distributed

    def node_fields(self) -> dict[str, Any]:
        """Keyword arguments of `_core.NodeConfig`."""
        hosts = self.host_scheduler and self.role == "worker" and self.rank == 0
        return {name: getattr(self, name) for name in _NODE_FIELDS} | {
            "version": package_version(),
            "num_workers": self.size,
            "host_scheduler": hosts,
            "scheduler_by_rank_0": self.host_scheduler,
            "scheduler_fd": self.scheduler_fd if hosts else -1,
            "scheduler_ports": list(self.scheduler_ports),
            "secret": self.secret.encode(errors="surrogateescape"),
        }

    def to_node_config(self) -> _core.NodeConfig:
        """For one Node. It gets a copy of the scheduler's socket, as it closes it; the next Node needs one, too.

        From now on programs that this process starts, and processes that it forks, do not have that socket: one that
        outlives this process would take connections for a scheduler that is gone.

        Without a secret it gets that of this user, which is made at the first use and good on this machine only.

        Raises:
            InvalidArgumentError: the socket that bpslaunch opened is not there any more; no secret can be had.
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
            if process_environment().get("BYTEPS_SCHEDULER_FD") == str(self.scheduler_fd):  # bpslaunch's
                _core.note_descriptor(self.scheduler_fd)
        return _core.NodeConfig(**node_fields)

    def _secret_of_user(self) -> bytes:
        try:
            return secret_of_user(self.secret_folders).encode()
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error


def process_environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)
