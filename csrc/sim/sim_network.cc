#include "sim/sim_network.h"

#include <algorithm>

namespace byteps::sim {

void SimNetwork::cut(const std::string& from, const std::string& to) {
  cuts_.try_emplace({from, to}, time_.now_us());
}

void SimNetwork::restore(const std::string& from, const std::string& to) { cuts_.erase({from, to}); }

TimeUs SimNetwork::cut_since_us(const std::string& from, const std::string& to) const {
  const auto found = cuts_.find({from, to});
  return found == cuts_.end() ? kNever : found->second;
}

TimeUs SimNetwork::arrival_us(const std::string& from, const std::string& to, size_t bytes) {
  const TimeUs now = time_.now_us();
  TimeUs left_us = now;
  if (options_.bytes_per_s > 0 && from != to) {
    TimeUs& free_us = card_free_us_[from];
    free_us = std::max(free_us, now) + static_cast<TimeUs>(bytes * 1'000'000 / options_.bytes_per_s);
    left_us = free_us;
  }
  return left_us + time_.random().between(options_.min_delay_us, options_.max_delay_us);
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

void SimNetwork::unbind(const transport::Address& address) { listeners_.erase(address.to_string()); }

SimListener* SimNetwork::listener_at(const transport::Address& address) {
  const auto found = listeners_.find(address.to_string());
  return found == listeners_.end() ? nullptr : found->second;
}

}  // namespace byteps::sim
