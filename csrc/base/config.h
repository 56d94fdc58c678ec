// Everything that one process of a job must know, in one place. Filled by byteps/config.py (the only reader of
// the environment), checked again here, never changed afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps {

struct NodeConfig {
  std::string role = "worker";  // "worker", "server", "scheduler"
  int rank = -1;                // of this worker; -1: the scheduler numbers
  int num_workers = 1;          // worker processes; 0 (server, scheduler): as the first worker says
  int num_servers = 0;
  int local_rank = -1;  // -1: the scheduler numbers by machine
  int local_size = -1;
  bool host_scheduler = false;       // this worker runs the scheduler, too
  bool scheduler_by_rank_0 = false;  // some worker (rank 0) does: for messages
  std::string scheduler_host = "127.0.0.1";
  std::vector<int>
      scheduler_ports;             // the scheduler takes the first free one; nodes look for it in this order
  int scheduler_fd = -1;           // listening socket handed over by a launcher
  std::string machine;             // processes of equal ones sum on their machine first; empty: found out
  bool shm = true;                 // shared memory between ranks of one machine, where it works
  std::string transport = "auto";  // between machines: "tcp", "rdma", "auto": RDMA where it works, else TCP
  std::string rdma_devices;        // "mlx5_0:1,mlx5_1": those to use; empty: chosen (transport/rdma/rails.h)
  int rdma_gid_index = -1;         // of the GID table; -1: chosen (transport/rdma/gid.h)
  int rdma_traffic_class = 0;
  int rdma_service_level = 0;
  int rdma_timeout = 18;       // packets are sent again after 4.096 us * 2^rdma_timeout
  int rdma_spin_us = 20;       // how long to look for completions before sleeping, at most
  std::string interface;       // whose address is handed out; empty: by the route to the scheduler
  std::string node_host;       // address that is handed out; goes before `interface`
  std::string secret;          // empty: no TCP
  bool loopback_only = false;  // the secret is this user's own: other machines do not have it
  std::string job_id;
  std::string version;                // of the package: all nodes must have the same
  double start_timeout_s = 300;       // all nodes must have joined by then
  double timeout_s = 30;              // a node that is silent for so long is lost
  double op_timeout_s = 600;          // a push_pull that lacks a rank for so long fails
  double stall_warning_s = 60;        // ... is warned about
  int64_t partition_bytes = 0;        // 0: by protocol::PartitionRule
  int64_t credit_bytes = 1 << 20;     // handed to a connection and not yet written
  bool autotune = false;              // rank 0 looks for better ones of both while the job runs
  int service_threads = 0;            // event loops, each a shard of the summation service; 0: by cores
  std::string placement = "auto";     // "auto", "allreduce", "ps", "weights:1,1,0.5"
  double nic_mbps = 0;                // Mbit/s of the network card, each way; 0: the kernel's, else measured
  bool nic_probe = true;              // the scheduler has unknown speeds measured; counts in its process
  std::string log_level = "warning";  // "error", "warning", "info", "debug"
};

// kInvalidArgument lists every fault, not just the first.
Status validate(const NodeConfig& config);

}  // namespace byteps
