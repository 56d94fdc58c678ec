// The RDMA ports of this machine, and why one cannot be used, without libibverbs.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/rdma/gid.h"
#include "transport/rdma/port_facts.h"

namespace byteps::transport::rdma {

struct PortReport {
  std::string device;  // "mlx5_0"
  int port = 1;
  bool is_ethernet = false;  // RoCE; else InfiniBand
  std::string state;         // "ACTIVE", "DOWN"
  std::string physical;      // "LinkUp", "Disabled"
  uint64_t mbps = 0;         // 0: unknown
  int numa_node = -1;        // -1: unknown, or there is one only
  uint16_t lid = 0;
  std::string interface;       // of an Ethernet port, "eth0"; empty: unknown
  std::vector<GidEntry> gids;  // those in use
  std::string why_not;         // empty: can be used; else a sentence with the remedy
  bool usable() const { return why_not.empty(); }
  std::string to_string() const { return device + " port " + std::to_string(port); }
};

// Pure.
PortReport make_report(const PortFacts& facts);

// Of `device`, or of all if that is empty, in the order of names. Costs what read_port_facts() does.
std::vector<PortReport> report_ports(const std::string& device = "");

}  // namespace byteps::transport::rdma
