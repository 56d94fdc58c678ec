// The configuration of one process of a job. byteps/config.py (the only reader of the environment)
// fills it in; validate() checks it again. It never changes afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps {

// Type, name, default. bindings/ makes an attribute of each. Fields that users set have the same
// name in byteps/config.py, where their meanings and units are.
#define BPS_NODE_CONFIG(X)                                                                       \
  X(std::string, role, "worker") /* "worker", "server" or "scheduler" */                         \
  X(int, rank, -1)               /* -1: assigned by the scheduler */                             \
  X(int, num_workers, 1)         /* 0 (server, scheduler): taken from the first worker */        \
  X(int, num_servers, 0)                                                                         \
  X(int, local_rank, -1)              /* -1: assigned by the scheduler, per machine */           \
  X(int, local_size, -1)              /* -1: counted by the scheduler, per machine */            \
  X(bool, host_scheduler, false)      /* this worker also runs the scheduler */                  \
  X(bool, scheduler_by_rank_0, false) /* rank 0 does; for messages only */                       \
  X(std::string, scheduler_host, "127.0.0.1")                                                    \
  X(std::vector<int>, scheduler_ports, {}) /* tried in this order */                             \
  X(int, scheduler_fd, -1)                 /* listening socket inherited from a launcher */      \
  X(std::string, machine, "")              /* empty: detected */                                 \
  X(bool, shm, true)                                                                             \
  X(int, shared_staging, -1)        /* a SharedPool; -1: if there is a GPU */                    \
  X(std::string, transport, "auto") /* between machines: "auto", "tcp" or "rdma" */              \
  X(std::string, rdma_devices, "")  /* empty: chosen (transport/rdma/rails.h) */                 \
  X(int, rdma_gid_index, -1)        /* -1: chosen (transport/rdma/gid.h) */                      \
  X(int, rdma_traffic_class, 0)                                                                  \
  X(int, rdma_service_level, 0)                                                                  \
  X(int, rdma_timeout, 18) /* 4.096 us * 2^rdma_timeout */                                       \
  X(int, rdma_spin_us, 20)                                                                       \
  X(std::string, interface, "") /* empty: the route to the scheduler */                          \
  X(std::string, node_host, "") /* address to advertise; overrides `interface` */                \
  X(std::string, secret, "")    /* bytes, not text; empty: TCP is disabled */                    \
  X(bool, loopback_only, false) /* the secret is valid on this machine only */                   \
  X(std::string, job_id, "")                                                                     \
  X(std::string, version, "")          /* of the package; must be equal on all nodes */          \
  X(double, start_timeout_s, 300)      /* for all nodes to join */                               \
  X(double, timeout_s, 30)             /* a node that is silent for this long is lost */         \
  X(double, op_timeout_s, 600)         /* for all ranks to take part in a push_pull */           \
  X(double, stall_warning_s, 60)       /* the same, before a warning is logged */                \
  X(int64_t, partition_bytes, 0)       /* 0: chosen by protocol::PartitionRule */                \
  X(int64_t, credit_bytes, 1 << 20)    /* bytes handed to a connection but not yet written */    \
  X(int64_t, pinned_bytes, 2ll << 30)  /* host memory pinned for copies from and to GPUs */      \
  X(bool, autotune, false)             /* rank 0 tunes these two sizes */                        \
  X(int, service_threads, 0)           /* 0: chosen by the number of cores */                    \
  X(std::string, placement, "auto")    /* "auto", "allreduce", "ps" or "weights:1,1,0.5" */      \
  X(double, nic_mbps, 0)               /* 0: as the kernel says, else measured */                \
  X(bool, failover, true)              /* the job survives its servers; likewise */              \
  X(bool, nic_probe, true)             /* only the scheduler reads this */                       \
  X(bool, is_generation, false)        /* of an elastic job, which goes on if this node fails */ \
  X(bool, measure_nics, true)          /* before the start, if nic_probe; likewise */            \
  X(double, traffic_report_s, 0.75)    /* interval; likewise */                                  \
  X(std::string, log_level, "warning") /* "error", "warning", "info" or "debug" */

struct NodeConfig {
#define BPS_MEMBER(type, name, initial) type name = initial;
  BPS_NODE_CONFIG(BPS_MEMBER)
#undef BPS_MEMBER
};

// Returns kInvalidArgument with a list of all errors, not only the first.
Status validate(const NodeConfig& config);

}  // namespace byteps
