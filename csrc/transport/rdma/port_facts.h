// Raw contents of sysfs about this machine's RDMA ports; port_report.h interprets them.
//
// Thread-safe. Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
#pragma once

#include <string>
#include <vector>

namespace byteps::transport::rdma {

// One port. A text is empty if its file does not exist.
struct PortFacts {
  struct GidFacts {
    int index = 0;
    std::string gid, type, interface;
  };
  std::string device;
  int port = 1;
  std::string node_type;   // "1: CA"
  std::string link_layer;  // "Ethernet"
  std::string state;       // "4: ACTIVE"
  std::string physical;    // "5: LinkUp"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::string lid;         // "0x1"
  std::string numa_node;   // "0"
  std::string interface;   // set if the port has no GID
  std::vector<GidFacts> gids;
  std::string character_device;    // "/dev/infiniband/uverbs0"
  int character_device_error = 0;  // errno of opening it, or 0
};

// The ports of `device`, or of all devices if empty, sorted by name. Reads some hundred small files
// per port. `sys` and `dev` are usually "/sys" and "/dev".
std::vector<PortFacts> read_port_facts(const std::string& sys, const std::string& dev,
                                       const std::string& device = "");

}  // namespace byteps::transport::rdma
