"""Environment variables of the original BytePS without effect, and why.

Setting one causes a warning.
"""

from __future__ import annotations

_DEVICE = "it is for GPUs, whose tensors are summed by CPUs here"
_TRANSPORT = "this version has no such option: see BYTEPS_TRANSPORT and BYTEPS_RDMA_*"
_TRACE = "this version writes no timeline"
_COMPRESSION = "this version compresses by casting only (Compression.fp16, Compression.bf16)"
_HASHING = "the scheduler distributes tensors by their bytes, not by a hash"
_LOG = "see BYTEPS_LOG_LEVEL"
_LIVENESS = "peers are always monitored: see BYTEPS_TIMEOUT_S"
_NO_FILES = "no socket or file with a name is created"
_BINDING = "processes are bound to whole NUMA nodes or not at all: see BYTEPS_NUMA_ON"

RETIRED: dict[str, str] = {
    "BYTEPS_ADDRESS_POOL_SIZE": _TRANSPORT,
    "BYTEPS_BUILT_IN_HASH_COEF": _HASHING,
    "BYTEPS_CPU_BLACKLIST": _BINDING,
    "BYTEPS_DEBUG_SAMPLE_TENSOR": _LOG,
    "BYTEPS_ENABLE_GDB": "start the debugger as the command: bpslaunch -- gdb -batch -ex run -ex bt --args python ...",
    "BYTEPS_ENABLE_IPC": _TRANSPORT,
    "BYTEPS_ENABLE_MIXED_MODE": "placement combines servers and workers if that is faster: see BYTEPS_PLACEMENT",
    "BYTEPS_IPC_COPY_NUM_THREADS": _TRANSPORT,
    "BYTEPS_IPC_ENABLE_ASYNC_COPY": _TRANSPORT,
    "BYTEPS_KEY_HASH_FN": _HASHING,
    "BYTEPS_LOG_HIDE_TIME": "log lines always carry the time",
    "BYTEPS_MIN_COMPRESS_BYTES": _COMPRESSION,
    "BYTEPS_MIXED_MODE_BOUND": _HASHING,
    "BYTEPS_MULTITHREADED_CPU": _BINDING,
    "BYTEPS_NCCL_GROUP_SIZE": _DEVICE,
    "BYTEPS_NCCL_NUM_RINGS": _DEVICE,
    "BYTEPS_NUMA_DEFAULT_QUOTA": _BINDING,
    "BYTEPS_NUMA_ROOT_QUOTA": _BINDING,
    "BYTEPS_OMP_THREAD_PER_GPU": "BYTEPS_SERVER_ENGINE_THREAD sets the number of summation threads",
    "BYTEPS_ORDERED_HOSTS": "DMLC_WORKER_ID sets the rank",
    "BYTEPS_PCIE_SWITCH_SIZE": _DEVICE,
    "BYTEPS_PRINT_RDMA_LOG": _TRANSPORT,
    "BYTEPS_RDMA_MAX_CONCURR_WR": _TRANSPORT,
    "BYTEPS_RDMA_RX_DEPTH": _TRANSPORT,
    "BYTEPS_RDMA_START_DEPTH": _TRANSPORT,
    "BYTEPS_REDUCE_ROOTS": _DEVICE,
    "BYTEPS_SERVER_DEBUG": _LOG,
    "BYTEPS_SERVER_DEBUG_KEY": _LOG,
    "BYTEPS_SERVER_ENABLE_SCHEDULE": "servers sum in the order of arrival, and workers send by priority",
    "BYTEPS_SERVER_ENGINE_BLOCKING": "the service's own threads always compute the sums",
    "BYTEPS_SOCKET_PATH": _NO_FILES,
    "BYTEPS_TELEMETRY_ON": "the counters of get_pushpull_speed are always on; their cost is negligible",
    "BYTEPS_THREADPOOL_SIZE": _COMPRESSION,
    "BYTEPS_TRACE_DIR": _TRACE,
    "BYTEPS_TRACE_END_STEP": _TRACE,
    "BYTEPS_TRACE_ON": _TRACE,
    "BYTEPS_TRACE_START_STEP": _TRACE,
    "BYTEPS_UCX_ERRH_ENABLE": _TRANSPORT,
    "BYTEPS_UCX_FORCE_REQ_ORDER": _TRANSPORT,
    "BYTEPS_UCX_QUEUE_SENDS": _TRANSPORT,
    "BYTEPS_UCX_RECONNECT_TMO": _TRANSPORT,
    "BYTEPS_UCX_SHORT_THRESH": _TRANSPORT,
    "BYTEPS_VISIBLE_CPU_CORES": _BINDING,
    "BYTEPS_ZMQ_MAX_SOCKET": _TRANSPORT,
    "BYTEPS_ZMQ_NTHREADS": _TRANSPORT,
    "DMLC_ENABLE_RDMA": "RDMA is used automatically if it works: see BYTEPS_TRANSPORT",
    "DMLC_ENABLE_UCX": _TRANSPORT,
    "DMLC_GROUP_SIZE": "one process has one rank",
    "DMLC_LOCAL": _TRANSPORT,
    "DMLC_NUM_PORTS": _TRANSPORT,
    "DMLC_PORT": "only the scheduler's port is fixed (DMLC_PS_ROOT_PORT); the system chooses the others",
    "DMLC_RANK": "see DMLC_WORKER_ID and BYTEPS_GLOBAL_RANK",
    "PS_DROP_MSG": _TRANSPORT,
    "PS_HEARTBEAT_INTERVAL": _LIVENESS,
    "PS_HEARTBEAT_TIMEOUT": _LIVENESS,
    "PS_KEY_LOG": _LOG,
    "PS_RESEND": _TRANSPORT,
    "PS_RESEND_TIMEOUT": _TRANSPORT,
    "PS_VERBOSE": _LOG,
}
