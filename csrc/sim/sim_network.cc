#include "sim/sim_network.h"

#include <algorithm>

#include "sim/sim_connection.h"

namespace byteps::sim {

TimeUs SimNetwork::cut_since_us(const std::string& from, const std::string& to) const {
  const auto found = cuts_.find({from, to});
  return found == cuts_.end() ? kNever : found->second;
}

std::optional<SimNetwork::Reset> SimNetwork::reset_one() {
  std::vector<std::shared_ptr<Wire>> open;
  for (const std::weak_ptr<Wire>& each : wires_) {
    const std::shared_ptr<Wire> wire = each.lock();
    if (wire && wire->is_open() && wire->host(0) != wire->host(1)) open.push_back(wire);
  }
  if (open.empty()) return std::nullopt;
  const std::shared_ptr<Wire> wire = time_.random().pick(open);
  wire->reset();
  return Reset{.hosts = {wire->host(0), wire->host(1)}, .is_resumed = wire->is_resumed()};
}

TimeUs SimNetwork::arrival_us(const std::string& from, const std::string& to, size_t bytes) {
  TimeUs left_us = time_.now_us();
  if (from != to) {
    if (auto waiting = at_next_send_.extract(from)) {
      for (transport::EventLoop::Task& task : waiting.mapped())
        loop_->schedule(time_.now_us(), std::move(task));
    }
    left_us = occupy(out_free_us_, from, left_us, bytes);
    if (rates_.contains(to)) left_us = occupy(in_free_us_, to, left_us, bytes);
  }
  return left_us + time_.random().between(options_.min_delay_us, options_.max_delay_us);
}

TimeUs SimNetwork::occupy(FreeUs& cards, const std::string& host, TimeUs now, size_t bytes) const {
  const auto changed = rates_.find(host);
  const uint64_t bytes_per_s = changed == rates_.end() ? options_.bytes_per_s : changed->second;
  if (bytes_per_s == 0) return now;
  TimeUs& free_us = cards[host];
  free_us = std::max(free_us, now) + static_cast<TimeUs>(bytes * 1'000'000 / bytes_per_s);
  return free_us;
}

Result<transport::Address> SimNetwork::bind(const transport::Address& address, SimListener& listener) {
  transport::Address bound = address;
  while (bound.port == 0 || (address.port == 0 && listeners_.contains(bound.to_string()))) {
    bound.port = ++last_port_;
  }
  if (!listeners_.emplace(bound.to_string(), &listener).second) {
    return unavailable("listen on " + bound.to_string() + ": the port is taken");
  }
  return bound;
}

SimListener* SimNetwork::listener_at(const transport::Address& address) {
  const auto found = listeners_.find(address.to_string());
  return found == listeners_.end() ? nullptr : found->second;
}

std::vector<transport::Address> SimNetwork::listeners_of(const std::string& ip) const {
  std::vector<transport::Address> addresses;
  for (const auto& [text, listener] : listeners_) {
    const auto address = transport::parse_address(text);
    if (address && address->ip == ip) addresses.push_back(*address);
  }
  return addresses;
}

TimeUs SimNetwork::handshake_us() {
  if (options_.slow_handshake_chance <= 0) return 0;
  if (!time_.random().chance(options_.slow_handshake_chance)) return 0;
  return time_.random().between(0, options_.max_handshake_us);
}

void SimNetwork::report(std::string violation) {
  const std::lock_guard lock(time_.mutex());
  violations_.push_back(std::move(violation));
}

void SimNetwork::quarantine(std::string name, LentBlock block) {
  const std::lock_guard lock(time_.mutex());
  quarantine_.add(std::move(name), std::move(block));
}

std::vector<std::string> SimNetwork::violations() {
  const std::lock_guard lock(time_.mutex());
  quarantine_.check();
  return violations_;
}

}  // namespace byteps::sim
