#include "transport/rdma/port_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.h"

namespace byteps::transport::rdma {
namespace {

namespace fs = std::filesystem;

// First line of the file, or empty on an error, as for unused table entries. Avoids streams, as
// there may be thousands of files.
std::string read_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text;
  const ssize_t got = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  std::string line(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  line.resize(std::min(line.find('\n'), line.size()));
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    names.push_back(each->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<int> numbers_in(const fs::path& folder) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(folder)) {
    int number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    if (read.ec == std::errc() && read.ptr == name.data() + name.size()) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

// "4: ACTIVE" -> "ACTIVE"
std::string behind_number(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::vector<GidEntry> read_gids(const fs::path& port) {
  std::vector<GidEntry> gids;
  for (const int index : numbers_in(port / "gids")) {
    const std::string name = std::to_string(index);
    const auto gid = parse_gid(read_line(port / "gids" / name));
    if (!gid || *gid == Gid{}) continue;  // tables have hundreds of entries, most of them zero
    const bool is_v2 = read_line(port / "gid_attrs" / "types" / name) == "RoCE v2";
    gids.push_back(
        {index, *gid, is_v2 ? GidType::kV2 : GidType::kV1, read_line(port / "gid_attrs" / "ndevs" / name)});
  }
  return gids;
}

// Without GIDs: an Ethernet device's ports differ in `dev_port`, which counts from 0.
std::string read_interface(const fs::path& device, const PortReport& port) {
  for (const GidEntry& gid : port.gids) {
    if (!gid.interface.empty()) return gid.interface;
  }
  for (const std::string& name : names_in(device / "device" / "net")) {
    const std::string dev_port = read_line(device / "device" / "net" / name / "dev_port");
    if (dev_port == std::to_string(port.port - 1)) return name;
  }
  return read_line(device / "parent");  // for software devices
}

PortReport read_port(const fs::path& device, int port) {
  const fs::path folder = device / "ports" / std::to_string(port);
  const std::string numa_node = read_line(device / "device" / "numa_node");
  PortReport report;
  report.device = device.filename().string();
  report.port = port;
  report.is_ethernet = read_line(folder / "link_layer") == "Ethernet";
  report.state = behind_number(read_line(folder / "state"));
  report.physical = behind_number(read_line(folder / "phys_state"));
  const double gbps = std::strtod(read_line(folder / "rate").c_str(), nullptr);
  report.mbps = static_cast<uint64_t>(std::max(0.0, std::round(gbps * 1000)));
  report.numa_node = numa_node.empty() ? -1 : std::atoi(numa_node.c_str());
  report.lid = static_cast<uint16_t>(std::strtoul(read_line(folder / "lid").c_str(), nullptr, 16));
  report.gids = read_gids(folder);
  if (report.is_ethernet) report.interface = read_interface(device, report);
  return report;
}

std::string find_character_device(const fs::path& sys, const fs::path& dev, const std::string& device) {
  const fs::path folder = sys / "class" / "infiniband_verbs";
  for (const std::string& name : names_in(folder)) {
    if (read_line(folder / name / "ibdev") == device) return dev / "infiniband" / name;
  }
  return "";
}

std::string why_device_not(const std::string& node_type, const std::string& file) {
  if (!node_type.starts_with("1:")) return "is neither InfiniBand nor RoCE but \"" + node_type + "\"";
  if (file.empty()) return "is not open to programs: load the kernel module: modprobe ib_uverbs";
  const UniqueFd opened(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  const int error = errno;
  if (opened.valid()) return "";
  return "cannot be opened: " + file + ": " + std::strerror(error) +
         ": in a container, start it with --device " + file + "; else check its permissions";
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

std::vector<PortReport> report_ports(const std::string& device, const std::string& sys,
                                     const std::string& dev) {
  std::vector<PortReport> reports;
  const fs::path devices = fs::path(sys) / "class" / "infiniband";
  for (const std::string& name : names_in(devices)) {
    if (!device.empty() && name != device) continue;
    const std::string why_device =
        why_device_not(read_line(devices / name / "node_type"), find_character_device(sys, dev, name));
    for (const int port : numbers_in(devices / name / "ports")) {
      PortReport& report = reports.emplace_back(read_port(devices / name, port));
      const std::string why = why_device.empty() ? why_port_not(report) : why_device;
      if (!why.empty()) report.why_not = report.to_string() + " " + why;
    }
  }
  return reports;
}

}  // namespace byteps::transport::rdma
