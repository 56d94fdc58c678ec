#include "transport/rdma/rails.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

namespace byteps::transport::rdma {
namespace {

Result<PortReport> port_named(std::span<const PortReport> ports, const std::string& name) {
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
    auto port = port_named(ports, name);
    if (!port) return port.status();
    found.push_back(std::move(*port));
  }
  return found;
}

// Keeps the elements for which the predicate holds, if there are any.
template <typename F>
void prefer(std::vector<PortReport>& ports, F holds) {
  if (std::ranges::any_of(ports, holds)) std::erase_if(ports, std::not_fn(holds));
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
  std::erase_if(usable, std::not_fn(&PortReport::usable));
  if (usable.empty()) return unavailable("RDMA: " + reasons(ports));

  const auto address = gid_of_ip(preference.ip);
  auto like = std::ranges::find_if(usable, [&](const PortReport& port) {
    return address && std::ranges::count(port.gids, *address, &GidEntry::gid) > 0;
  });
  if (like == usable.end()) like = std::ranges::max_element(usable, {}, &PortReport::mbps);
  prefer(usable, [mbps = like->mbps, is_ethernet = like->is_ethernet](const PortReport& port) {
    return port.mbps == mbps && port.is_ethernet == is_ethernet;
  });
  if (preference.numa_node >= 0) {
    prefer(usable, [&](const PortReport& port) { return port.numa_node == preference.numa_node; });
  }
  std::ranges::sort(usable, {}, [](const PortReport& port) { return std::pair(port.device, port.port); });
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
