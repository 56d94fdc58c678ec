// Which of this machine's RDMA ports a process uses, and in which order. Pure.
//
// The order has to be alike on all machines: the first rail of one meets the first of another. So it is by name, unless
// it is said (BYTEPS_RDMA_DEVICES).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/rdma/port_report.h"

namespace byteps::transport::rdma {

struct RailPreference {
  std::string
      devices;         // "mlx5_0:1,mlx5_1": a device without a port means its first usable one; empty: choose
  std::string ip;      // that others reach this process by; or empty
  int numa_node = -1;  // of this process's cores; -1: no single one
};

// Of the usable ports those of the interface that carries `ip`, and of the same speed and kind; where none does, the
// fastest ones. Of these those of the NUMA node, where there are some. kUnavailable: there is none, and why not;
// kInvalidArgument: one that was asked for is not there.
Result<std::vector<PortReport>> choose_rails(std::span<const PortReport> ports,
                                             const RailPreference& preference);

// Of the cores that this process may run on, if all are of one; else -1.
int numa_node_of_process();

}  // namespace byteps::transport::rdma
