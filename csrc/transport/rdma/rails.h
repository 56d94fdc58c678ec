// Selection and order of this machine's RDMA ports for a process. Pure.
//
// The order must be the same on all machines, as the n-th rail of one connects to the n-th rail of
// another. So it is by name, unless BYTEPS_RDMA_DEVICES gives it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/rdma/port_report.h"

namespace byteps::transport::rdma {

struct RailPreference {
  std::string devices;  // "mlx5_0:1,mlx5_1"; without a port: the first usable one; empty: choose
  std::string ip;       // address that peers use for this process, or empty
  int numa_node = -1;   // NUMA node of this process's cores; -1: no single one
};

// Of the usable ports, chooses those of the interface with `ip` and others of equal speed and kind,
// or else the fastest ones; of these, those on the NUMA node, if any. kUnavailable: there is none,
// with the reason; kInvalidArgument: a requested port does not exist.
Result<std::vector<PortReport>> choose_rails(std::span<const PortReport> ports,
                                             const RailPreference& preference);

// NUMA node of the cores that this process may run on; -1 if there are several.
int numa_node_of_process();

}  // namespace byteps::transport::rdma
