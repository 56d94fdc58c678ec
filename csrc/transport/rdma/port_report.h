// The RDMA ports of this machine, and why a port cannot be used, without libibverbs.
//
// Thread-safe. Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/rdma/gid.h"

namespace byteps::transport::rdma {

struct PortReport {
  std::string device;  // "mlx5_0"
  int port = 1;
  bool is_ethernet = false;  // RoCE; otherwise InfiniBand
  std::string state;         // "ACTIVE", "DOWN"
  std::string physical;      // "LinkUp", "Disabled"
  uint64_t mbps = 0;         // 0: unknown
  int numa_node = -1;        // -1: unknown, or the machine has only one
  uint16_t lid = 0;
  std::string interface;       // of an Ethernet port, such as "eth0"; empty: unknown
  std::vector<GidEntry> gids;  // entries in use
  std::string why_not;         // empty: usable; otherwise a sentence with the remedy
  bool usable() const { return why_not.empty(); }
  std::string to_string() const { return device + " port " + std::to_string(port); }
};

// The ports of `device`, or of all devices if empty, sorted by name. Reads some hundred small files
// per port. Tests have other folders.
std::vector<PortReport> report_ports(const std::string& device = "", const std::string& sys = "/sys",
                                     const std::string& dev = "/dev");

}  // namespace byteps::transport::rdma
