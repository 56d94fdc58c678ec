#include "protocol/pacing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace byteps::protocol {
namespace {

// A pause is the time in which a limited connection sends so many bytes.
constexpr uint64_t kPauseBytes = 512 << 10;

// Connections that use all of a card's rate fill the queue before it until it overflows, because
// acknowledgements and bursts come on top. This fraction keeps the queue short.
constexpr double kLoad = 0.998;

// Conservative rate of one thread over TCP.
constexpr double kMbpsOfOneThread = 4000;

}  // namespace

double payload_bytes_per_s(double nic_mbps) { return nic_mbps * 1e6 / 8 * 1448 / 1514; }

double nic_mbps_of_payload(double bytes_per_s) { return bytes_per_s / payload_bytes_per_s(1); }

uint32_t useful_shards(double nic_mbps) { return static_cast<uint32_t>(nic_mbps / kMbpsOfOneThread) + 1; }

Pace::Pace(const Tree& tree, const std::vector<double>& shares)
    : rate_of_host_(tree.num_reducer_hosts(), 0.0) {
  std::vector<ReducerHost> reducer_hosts = tree.reducer_hosts();
  for (ReducerHost& reducer_host : reducer_hosts) {
    if (reducer_host.nic_mbps <= 0) return;
    reducer_host.nic_mbps = kLoad * payload_bytes_per_s(reducer_host.nic_mbps) * 8 / 1e6;
  }
  constexpr uint64_t kManyBytes = 1ull << 40;  // large, for precision
  const double seconds = predicted_seconds(reducer_hosts, shares, kManyBytes);
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  for (size_t reducer_host = 0; reducer_host < reducer_hosts.size(); ++reducer_host) {
    rate_of_host_[reducer_host] = shares[reducer_host] * static_cast<double>(kManyBytes) / seconds;
  }
}

uint64_t Pace::rate(uint32_t from, uint32_t to, const Tree& tree) const {
  // The ranks of both machines serve in turn, and so do the shards.
  const uint32_t connections = tree.num_connections(from, to);
  double rate = rate_to_host_of(to, tree);
  if (tree.take_turns(from, to)) rate = connections == 1 ? 0 : rate + rate_to_host_of(from, tree);
  return static_cast<uint64_t>(rate / connections);
}

double Pace::rate_to_host_of(uint32_t node, const Tree& tree) const {
  const uint32_t reducer_host =
      node < tree.num_workers() ? tree.machine_of(node) : tree.reducer_host_of(node);
  return reducer_host < rate_of_host_.size() ? rate_of_host_[reducer_host] : 0;
}

bool Burst::covers(uint64_t bytes, TimeUs now, TimeUs pause_us) {
  if (now - last_us_ > pause_us) bytes_ = 0;
  last_us_ = now;
  bytes_ += bytes;
  return bytes_ <= most_bytes_;
}

std::optional<uint64_t> Pacer::set_limit(uint64_t bytes_per_s) {
  const bool changes = std::exchange(bytes_per_s_, bytes_per_s) != bytes_per_s && held_;
  if (bytes_per_s == 0) held_ = false;
  return changes ? std::optional(bytes_per_s) : std::nullopt;
}

std::optional<uint64_t> Pacer::on_send(uint64_t bytes, TimeUs now, Burst& burst, bool rest, uint64_t count) {
  if (bytes_per_s_ == 0) return std::nullopt;
  const auto pause_us = static_cast<TimeUs>(1'000'000 * kPauseBytes / bytes_per_s_);
  const bool is_burst = burst.covers(bytes * count, now, pause_us);
  const bool is_own_burst = own_burst_.covers(bytes, now, pause_us);
  const bool hold = !(is_burst && is_own_burst) && !rest;
  if (hold == held_) return std::nullopt;
  held_ = hold;
  return hold ? bytes_per_s_ : 0;
}

}  // namespace byteps::protocol
