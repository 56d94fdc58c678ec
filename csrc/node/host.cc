#include "node/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "transport/address.h"

namespace byteps::node {
namespace {

using transport::Address;

// An address outside this machine that no host has (RFC 5737); nothing is sent to it.
const Address kOutside{"192.0.2.1", 9};

// Pause between two look-ups of a name, and when to log the wait for it.
constexpr TimeUs kLookUpPauseUs = 1'000'000;
constexpr TimeUs kFirstWordUs = 5'000'000;
constexpr TimeUs kNextWordUs = 30'000'000;

std::string link_target(const char* path) {
  std::array<char, 64> text{};
  const ssize_t length = readlink(path, text.data(), text.size());
  return length < 0 ? std::string() : std::string(text.data(), static_cast<size_t>(length));
}

// True for "localhost", "127.0.0.1" and "::1", which mean this machine only; false for a host's own
// name that resolves to 127.0.1.1.
bool means_loopback(const std::string& host) { return host == "localhost" || Address{host, 0}.is_loopback(); }

// The addresses that other machines can reach.
std::vector<Address> outside_addresses(std::vector<Address> addresses) {
  std::erase_if(addresses, std::mem_fn(&Address::is_loopback));
  return addresses;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_hardware(const std::filesystem::path& interface) { return is_there(interface / "device"); }

double told_mbps(const std::filesystem::path& interface) {
  double mbps = 0;
  std::ifstream(interface / "speed") >> mbps;
  return std::max(mbps, 0.0);  // the kernel says -1 if it does not know
}

// The kernel has a link, such as lower_eth0, to each interface through which an interface sends.
std::vector<std::string> interfaces_below(const std::filesystem::path& interface) {
  constexpr std::string_view kLower = "lower_";
  std::vector<std::string> below;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(interface, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kLower)) below.push_back(name.substr(kLower.size()));
  }
  return below;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "unknown host";
}

std::string machine_id() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return (boot_id.empty() ? host_name() : boot_id) + " " + link_target("/proc/self/ns/net");
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

bool has_gpu() { return ::access("/dev/nvidiactl", F_OK) == 0; }

Result<std::vector<Address>> await_scheduler_host(const NodeConfig& config, TimeUs deadline_us,
                                                  const KeepWaiting& keep_waiting) {
  const TimeUs started_us = now_us();
  TimeUs next_word_us = started_us + kFirstWordUs;
  while (true) {
    auto addresses = transport::resolve(config.scheduler_host, 1);
    const TimeUs now = now_us();
    if (addresses || now >= deadline_us) return addresses;
    if (now >= next_word_us) {
      next_word_us = now + kNextWordUs;
      BPS_LOG(kWarning) << "waiting for the scheduler's host since " << (now - started_us) / 1'000'000
                        << " s: " << addresses.status().message() << "; retrying for another "
                        << (deadline_us - now) / 1'000'000 << " s";
    }
    EventFlag nobody_sets;
    const Status waited = wait_for(nobody_sets, std::min(deadline_us, now + kLookUpPauseUs), keep_waiting);
    if (waited.code() == StatusCode::kAborted) return waited;
  }
}

Result<std::string> own_address(const NodeConfig& config, const std::vector<Address>& scheduler) {
  if (!config.node_host.empty()) {
    auto addresses = transport::resolve(config.node_host, 1);
    if (!addresses) return addresses.status().with_context("DMLC_NODE_HOST");
    return addresses->front().ip;
  }
  if (!config.interface.empty()) return transport::address_of_interface(config.interface);
  if (means_loopback(config.scheduler_host)) return scheduler.front().ip;
  const std::vector<Address> outside = outside_addresses(scheduler);
  return transport::address_by_route(outside.empty() ? kOutside : outside.front());
}

double nic_mbps(const NodeConfig& config, const std::string& own_ip) {
  if (config.nic_mbps > 0) return config.nic_mbps;
  const auto interface = transport::interface_of_address(own_ip);
  return interface ? kernel_mbps(*interface) : 0;
}

double kernel_mbps(const std::string& interface, const std::string& net) {
  const std::filesystem::path path = std::filesystem::path(net) / interface;
  if (is_hardware(path)) return told_mbps(path);
  const std::vector<std::string> below = interfaces_below(path);
  if (below.size() == 1) return kernel_mbps(below.front(), net);
  const bool of_hardware = std::ranges::all_of(
      below, [&](const std::string& name) { return is_hardware(path.parent_path() / name); });
  return !below.empty() && of_hardware && is_there(path / "bonding") ? told_mbps(path) : 0;
}

Result<std::string> scheduler_bind_address(const NodeConfig& config, const std::vector<Address>& scheduler) {
  if (means_loopback(config.scheduler_host)) return own_address(config, scheduler);
  for (const Address& address : outside_addresses(scheduler)) {
    // The route to an address of this machine starts at the same address.
    const auto source = transport::address_by_route(address);
    if (source && *source == address.ip) return address.ip;
  }
  return std::string("0.0.0.0");
}

}  // namespace byteps::node
