#include "transport/rdma/port_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace byteps::transport::rdma {
namespace {

// "4: ACTIVE" -> "ACTIVE"
std::string behind_number(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::vector<GidEntry> read_gids(const PortFacts& facts) {
  std::vector<GidEntry> entries;
  for (const PortFacts::GidFacts& each : facts.gids) {
    const auto gid = parse_gid(each.gid);
    if (!gid || *gid == Gid{}) continue;
    entries.push_back(
        {each.index, *gid, each.type == "RoCE v2" ? GidType::kV2 : GidType::kV1, each.interface});
  }
  return entries;
}

std::string interface_of(const PortFacts& facts, const std::vector<GidEntry>& gids) {
  const auto named = std::ranges::find_if(gids, [](const GidEntry& gid) { return !gid.interface.empty(); });
  return named == gids.end() ? facts.interface : named->interface;
}

std::string why_device_not(const PortFacts& facts) {
  if (!facts.node_type.starts_with("1:")) {
    return "is neither InfiniBand nor RoCE but \"" + facts.node_type + "\"";
  }
  const std::string& file = facts.character_device;
  if (file.empty()) return "is not open to programs: load the kernel module: modprobe ib_uverbs";
  if (facts.character_device_error != 0) {
    return "cannot be opened: " + file + ": " + std::strerror(facts.character_device_error) +
           ": in a container, start it with --device " + file + "; else check its permissions";
  }
  return "";
}

std::string why_port_not(const PortReport& port) {
  if (port.state != "ACTIVE") {
    const std::string is = "is " + port.state + " (physical state: " + port.physical + "): ";
    if (port.is_ethernet) {
      const std::string interface = port.interface.empty() ? "" : " show " + port.interface;
      return is + "check the cable, the switch and `ip link" + interface + "`";
    }
    return is + (port.state == "INIT" ? "no subnet manager has set it up: start opensm, or the switch's"
                                      : "check the cable and the switch");
  }
  if (!port.gids.empty()) return "";
  if (!port.is_ethernet) return "has no GID: if the port is virtual, check that the host has set it up";
  return "has no GID: give its interface" + (port.interface.empty() ? "" : " " + port.interface) +
         " an address (ip address add), and check that this network namespace has it";
}

}  // namespace

PortReport make_report(const PortFacts& facts) {
  PortReport report;
  report.device = facts.device;
  report.port = facts.port;
  report.is_ethernet = facts.link_layer == "Ethernet";
  report.state = behind_number(facts.state);
  report.physical = behind_number(facts.physical);
  report.mbps =
      static_cast<uint64_t>(std::max(0.0, std::round(std::strtod(facts.rate.c_str(), nullptr) * 1000)));
  report.numa_node = facts.numa_node.empty() ? -1 : std::atoi(facts.numa_node.c_str());
  report.lid = static_cast<uint16_t>(std::strtoul(facts.lid.c_str(), nullptr, 16));
  report.gids = read_gids(facts);
  if (report.is_ethernet) report.interface = interface_of(facts, report.gids);
  std::string why = why_device_not(facts);
  if (why.empty()) why = why_port_not(report);
  if (!why.empty()) report.why_not = report.to_string() + " " + why;
  return report;
}

std::vector<PortReport> report_ports(const std::string& device) {
  std::vector<PortReport> reports;
  for (const PortFacts& facts : read_port_facts("/sys", "/dev", device))
    reports.push_back(make_report(facts));
  return reports;
}

}  // namespace byteps::transport::rdma
