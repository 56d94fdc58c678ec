#include "transport/rdma/rails.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace byteps::transport::rdma {
namespace {

Result<PortReport> find_port(std::span<const PortReport> ports, const std::string& name) {
  const size_t colon = name.find(':');
  const std::string device = name.substr(0, colon);
  const int number = colon == std::string::npos ? 0 : std::atoi(name.c_str() + colon + 1);
  const PortReport* unusable = nullptr;
  std::string there;
  for (const PortReport& port : ports) {
    there += (there.empty() ? "" : ", ") + port.device + ":" + std::to_string(port.port);
    if (port.device != device || (number > 0 && port.port != number)) continue;
    if (port.usable()) return port;
    unusable = &port;
  }
  if (unusable) return unavailable("RDMA: " + unusable->why_not);
  return invalid_argument("RDMA: BYTEPS_RDMA_DEVICES: no device " + name + ": there is " +
                          (there.empty() ? "none" : there));
}

Result<std::vector<PortReport>> find_ports(std::span<const PortReport> ports, const std::string& names) {
  std::vector<PortReport> found;
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, ',');) {
    auto port = find_port(ports, name);
    if (!port) return port.status();
    found.push_back(std::move(*port));
  }
  return found;
}

bool carries(const PortReport& port, const Gid& address) {
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&](const GidEntry& entry) { return entry.gid == address; });
}

// Keeps the elements for which the predicate holds, if there are any.
template <typename F>
void prefer(std::vector<PortReport>& ports, F holds) {
  if (std::any_of(ports.begin(), ports.end(), holds)) {
    std::erase_if(ports, [&](const PortReport& port) { return !holds(port); });
  }
}

std::string reasons(std::span<const PortReport> ports) {
  std::string text;
  for (const PortReport& port : ports) text += (text.empty() ? "" : "; ") + port.why_not;
  return text;
}

}  // namespace

Result<std::vector<PortReport>> choose_rails(std::span<const PortReport> ports,
                                             const RailPreference& preference) {
  if (ports.empty()) return unavailable("RDMA: this machine has no RDMA device");
  if (!preference.devices.empty()) return find_ports(ports, preference.devices);
  std::vector<PortReport> usable(ports.begin(), ports.end());
  std::erase_if(usable, [](const PortReport& port) { return !port.usable(); });
  if (usable.empty()) return unavailable("RDMA: " + reasons(ports));

  const auto address = gid_of_ip(preference.ip);
  const auto own = std::find_if(usable.begin(), usable.end(),
                                [&](const PortReport& port) { return address && carries(port, *address); });
  if (own != usable.end()) {
    const PortReport like = *own;
    prefer(usable, [&](const PortReport& port) {
      return port.mbps == like.mbps && port.is_ethernet == like.is_ethernet;
    });
  } else {
    const auto fastest = std::max_element(usable.begin(), usable.end(),
                                          [](const auto& a, const auto& b) { return a.mbps < b.mbps; });
    prefer(usable, [most = fastest->mbps, kind = fastest->is_ethernet](const PortReport& port) {
      return port.mbps == most && port.is_ethernet == kind;
    });
  }
  if (preference.numa_node >= 0) {
    prefer(usable, [&](const PortReport& port) { return port.numa_node == preference.numa_node; });
  }
  std::sort(usable.begin(), usable.end(), [](const PortReport& a, const PortReport& b) {
    return std::pair(a.device, a.port) < std::pair(b.device, b.port);
  });
  return usable;
}

int numa_node_of_process() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return -1;
  int only = -1;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    int node = -1;
    std::error_code ignored;
    for (const auto& entry :
         std::filesystem::directory_iterator("/sys/devices/system/cpu/cpu" + std::to_string(core), ignored)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("node")) node = std::atoi(name.c_str() + 4);
    }
    if (node < 0 || (only >= 0 && node != only)) return -1;
    only = node;
  }
  return only;
}

}  // namespace byteps::transport::rdma
