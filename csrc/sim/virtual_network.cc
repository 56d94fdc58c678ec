#include "sim/virtual_network.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {
namespace {

constexpr TimeUs kConnectAgainUs = 2'000;

}  // namespace

void VirtualNetwork::listen(VirtualProcess& process, const std::string& address, AcceptCallback on_accept) {
  listeners_.emplace(address, Listener{&process, std::move(on_accept)});
}

void VirtualNetwork::connect(VirtualProcess& process, const std::string& address, TimeUs deadline_us,
                             ConnectCallback on_done, Carriage carriage) {
  auto attempt =
      std::make_shared<Attempt>(Attempt{&process, address, deadline_us, std::move(on_done), carriage});
  process.at(deadline_us, [attempt] {
    if (std::exchange(attempt->over, true)) return;
    attempt->on_done(unavailable("connect to " + attempt->address + ": no answer"));
  });
  try_connect(attempt);
}

void VirtualNetwork::try_connect(const std::shared_ptr<Attempt>& attempt) {
  if (attempt->over) return;
  const auto found = listeners_.find(attempt->address);
  if (found == listeners_.end()) {
    attempt->process->at(clock_.now() + kConnectAgainUs, [this, attempt] { try_connect(attempt); });
    return;
  }
  Listener& listener = found->second;
  listener.process->at(clock_.now() + latency_us(),
                       [this, &listener, attempt] { accept(listener, attempt); });
}

void VirtualNetwork::accept(Listener& listener, const std::shared_ptr<Attempt>& attempt) {
  if (attempt->over || attempt->process->gone()) return;
  const auto [near, far] = make_pair(*attempt->process, *listener.process, attempt->carriage);
  attempt->process->at(clock_.now() + latency_us(), [attempt, near = near] {
    if (std::exchange(attempt->over, true)) {
      near->close();
    } else {
      attempt->on_done(near);
    }
  });
  listener.on_accept(*far);
}

std::pair<Endpoint*, Endpoint*> VirtualNetwork::make_local_pair(VirtualProcess& process) {
  return make_pair(process, process, Carriage::kLocal);
}

std::pair<Endpoint*, Endpoint*> VirtualNetwork::make_pair(VirtualProcess& first, VirtualProcess& second,
                                                          Carriage carriage) {
  Endpoint* near = endpoints_.emplace_back(std::make_unique<Endpoint>(*this, first, carriage)).get();
  Endpoint* far = endpoints_.emplace_back(std::make_unique<Endpoint>(*this, second, carriage)).get();
  near->is_lender_ = carriage == Carriage::kShare;
  near->arena_free_bytes_ = options_.arena_bytes;
  near->other_ = far;
  far->other_ = near;
  return {near, far};
}

void VirtualNetwork::on_process_gone(VirtualProcess& process) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second.process == &process; });
  for (const auto& endpoint : endpoints_) {
    // What an orderly exit has begun to close is the kernel's to finish.
    if (&endpoint->process_ == &process && endpoint->open()) endpoint->close();
  }
}

// Of those between two processes; null if there is none. Links fall silent, not memory, and with both ends in use.
Endpoint* VirtualNetwork::pick_connection(bool for_silence) {
  std::vector<Endpoint*> candidates;
  for (const auto& endpoint : endpoints_) {
    const bool whole = endpoint->open() && endpoint->other_->open();
    const bool watched = endpoint->silence_us_ != kNever && endpoint->other_->silence_us_ != kNever;
    if (for_silence && (endpoint->carriage() == Carriage::kShare || !watched)) continue;
    if (whole && &endpoint->process_ != &endpoint->other_->process_) candidates.push_back(endpoint.get());
  }
  return candidates.empty() ? nullptr : random_.pick(candidates);
}

std::pair<const VirtualProcess*, const VirtualProcess*> VirtualNetwork::silence_one() {
  Endpoint* chosen = pick_connection(true);
  if (chosen == nullptr) return {nullptr, nullptr};
  for (Endpoint* end : {chosen, chosen->other_}) end->cut_off();
  return {&chosen->process_, &chosen->other_->process_};
}

std::pair<const VirtualProcess*, const VirtualProcess*> VirtualNetwork::cut_one() {
  Endpoint* chosen = pick_connection(false);
  if (chosen == nullptr) return {nullptr, nullptr};
  for (Endpoint* end : {chosen, chosen->other_}) {
    end->lose_some();
    end->send_end("connection lost");
  }
  return {&chosen->process_, &chosen->other_->process_};
}

TimeUs VirtualNetwork::latency_us() {
  const TimeUs latency = random_.between(options_.min_latency_us, options_.max_latency_us);
  return random_.chance(options_.straggler_chance) ? 10 * latency : latency;
}

TimeUs VirtualNetwork::departure_us(const VirtualProcess& process, uint64_t bytes) {
  if (options_.bytes_per_ms == 0) return clock_.now() + random_.between(0, options_.min_latency_us);
  TimeUs& busy_until = busy_until_us_[&process];
  busy_until = std::max(busy_until, clock_.now()) + static_cast<TimeUs>(bytes * 1000 / options_.bytes_per_ms);
  return busy_until;
}

}  // namespace byteps::sim
