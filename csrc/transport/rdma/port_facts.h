// What sysfs says of this machine's RDMA ports, as it stands there; port_report.h makes sense of it.
//
// Any thread. Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
#pragma once

#include <string>
#include <vector>

namespace byteps::transport::rdma {

// One port. Empty text: there is no such file.
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
  std::string interface;   // without any GID
  std::vector<GidFacts> gids;
  std::string character_device;    // "/dev/infiniband/uverbs0"
  int character_device_error = 0;  // the errno with which it refuses to be opened
};

// The ports of `device`, or of all if that is empty, in the order of names. Cost: some hundred small files for each port.
// The folders are where sysfs and the device files are: "/sys", "/dev".
std::vector<PortFacts> read_port_facts(const std::string& sys, const std::string& dev,
                                       const std::string& device = "");

}  // namespace byteps::transport::rdma
