// The configuration of one process of a job. byteps/config.py (the only reader of the environment)
// fills it in; validate() checks it again. It never changes afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps {

struct NodeConfig {
  std::string role = "worker";  // "worker", "server" or "scheduler"
  int rank = -1;                // rank of this worker; -1: assigned by the scheduler
  // Number of worker processes; 0 (server, scheduler): taken from the first worker.
  int num_workers = 1;
  int num_servers = 0;
  int local_rank = -1;  // -1: assigned by the scheduler, per machine
  int local_size = -1;
  bool host_scheduler = false;       // this worker also runs the scheduler
  bool scheduler_by_rank_0 = false;  // rank 0 runs the scheduler (used in messages only)
  std::string scheduler_host = "127.0.0.1";
  // the scheduler takes the first free one; nodes try all in order
  std::vector<int> scheduler_ports;
  int scheduler_fd = -1;  // listening socket inherited from a launcher
  std::string machine;    // processes with equal values first sum on their machine; empty: detected
  bool shm = true;        // use shared memory between ranks of one machine, where it works
  // Between machines: "tcp", "rdma", or "auto": RDMA where it works, else TCP.
  std::string transport = "auto";
  // Devices to use, such as "mlx5_0:1,mlx5_1"; empty: chosen (transport/rdma/rails.h).
  std::string rdma_devices;
  int rdma_gid_index = -1;  // index into the GID table; -1: chosen (transport/rdma/gid.h)
  int rdma_traffic_class = 0;
  int rdma_service_level = 0;
  int rdma_timeout = 18;  // retransmission timeout: 4.096 us * 2^rdma_timeout
  int rdma_spin_us = 20;  // longest time to poll for completions before sleeping
  // Interface whose address is advertised; empty: the route to the scheduler.
  std::string interface;
  std::string node_host;       // address to advertise; overrides `interface`
  std::string secret;          // empty: TCP is disabled
  bool loopback_only = false;  // the secret belongs to this user and exists on this machine only
  std::string job_id;
  std::string version;             // of the package; must be equal on all nodes
  double start_timeout_s = 300;    // time within which all nodes must join
  double timeout_s = 30;           // a node that is silent for this long is considered lost
  double op_timeout_s = 600;       // a push_pull that waits for a rank for this long fails
  double stall_warning_s = 60;     // a push_pull that waits for a rank for this long is logged
  int64_t partition_bytes = 0;     // 0: chosen by protocol::PartitionRule
  int64_t credit_bytes = 1 << 20;  // bytes handed to a connection but not yet written
  bool autotune = false;           // rank 0 tunes the two sizes while the job runs
  // Number of event loops, each a shard of the summation service; 0: by cores.
  int service_threads = 0;
  std::string placement = "auto";  // "auto", "allreduce", "ps" or "weights:1,1,0.5"
  // Mbit/s of the network card in each direction; 0: as the kernel says, else measured
  double nic_mbps = 0;
  bool nic_probe = true;              // measure unknown card speeds; only the scheduler reads this
  std::string log_level = "warning";  // "error", "warning", "info" or "debug"
};

// Returns kInvalidArgument with a list of all errors, not only the first.
Status validate(const NodeConfig& config);

}  // namespace byteps
