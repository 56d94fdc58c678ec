#include "transport/rdma/port_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
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

std::vector<PortFacts::GidFacts> read_gids(const std::string& port) {
  std::vector<PortFacts::GidFacts> gids;
  for (const int index : numbers_in(port + "/gids")) {
    const std::string name = std::to_string(index);
    PortFacts::GidFacts facts{index, read_line(port + "/gids/" + name), "", ""};
    // Tables have hundreds of entries, most of them zero.
    if (facts.gid.find_first_not_of("0:") == std::string::npos) continue;
    facts.type = read_line(port + "/gid_attrs/types/" + name);
    facts.interface = read_line(port + "/gid_attrs/ndevs/" + name);
    gids.push_back(std::move(facts));
  }
  return gids;
}

// Interface of a port without GIDs. Ports of a device differ in `dev_port`, which counts from 0.
std::string read_interface(const fs::path& device, int port) {
  for (const std::string& name : names_in(device / "device" / "net")) {
    const std::string dev_port = read_line(device / "device" / "net" / name / "dev_port");
    if (dev_port == std::to_string(port - 1)) return name;
  }
  return read_line(device / "parent");  // for software devices
}

std::string find_character_device(const fs::path& sys, const fs::path& dev, const std::string& device) {
  const fs::path folder = sys / "class" / "infiniband_verbs";
  for (const std::string& name : names_in(folder)) {
    if (read_line(folder / name / "ibdev") == device) return dev / "infiniband" / name;
  }
  return "";
}

int error_of_opening(const std::string& path) {
  if (path.empty()) return 0;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file.valid() ? 0 : errno;
}

PortFacts read_port(const fs::path& device, int port) {
  const fs::path folder = device / "ports" / std::to_string(port);
  PortFacts facts;
  facts.device = device.filename().string();
  facts.port = port;
  facts.node_type = read_line(device / "node_type");
  facts.numa_node = read_line(device / "device" / "numa_node");
  facts.link_layer = read_line(folder / "link_layer");
  facts.state = read_line(folder / "state");
  facts.physical = read_line(folder / "phys_state");
  facts.rate = read_line(folder / "rate");
  facts.lid = read_line(folder / "lid");
  facts.interface = read_interface(device, port);
  facts.gids = read_gids(folder);
  return facts;
}

}  // namespace

std::vector<PortFacts> read_port_facts(const std::string& sys, const std::string& dev,
                                       const std::string& device) {
  std::vector<PortFacts> all;
  const fs::path devices = fs::path(sys) / "class" / "infiniband";
  for (const std::string& name : names_in(devices)) {
    if (!device.empty() && name != device) continue;
    const std::string file = find_character_device(sys, dev, name);
    const int error = error_of_opening(file);
    for (const int port : numbers_in(devices / name / "ports")) {
      PortFacts facts = read_port(devices / name, port);
      facts.character_device = file;
      facts.character_device_error = error;
      all.push_back(std::move(facts));
    }
  }
  return all;
}

}  // namespace byteps::transport::rdma
