#include <algorithm>
#include <functional>
#include <utility>

#include "sim/sim_connection.h"

namespace byteps::sim {
namespace {

// Time after which bytes lost on a cut path are sent again.
constexpr TimeUs kRetransmitUs = 50'000;

}  // namespace

Wire::Wire(SimNetwork& network, std::array<std::string, 2> hosts, size_t arena_bytes, bool is_resumed)
    : network_(network), hosts_(std::move(hosts)), is_resumed_(is_resumed) {
  if (arena_bytes > 0) leases_.emplace(network_, arena_bytes, hosts_[0] + " > " + hosts_[1]);
}

size_t Wire::room(int side) const {
  const size_t window = network_.options().window_bytes;
  return window - std::min(window, directions_[side].unread);
}

void Wire::send(int side, Chunk chunk) {
  Direction& direction = directions_[side];
  if (direction.unread == 0 && !chunk.bytes.empty()) direction.busy_since_us = network_.time().now_us();
  direction.unread += chunk.bytes.size();
  const size_t bytes = chunk.head.size() + chunk.bytes.size();
  TimeUs arrival_us = network_.arrival_us(hosts_[side], hosts_[1 - side], bytes);
  if (!direction.chunks.empty()) arrival_us = std::max(arrival_us, direction.chunks.back().arrival_us);
  direction.chunks.push_back({arrival_us, std::move(chunk)});
  if (!direction.is_due) schedule(side, arrival_us);
}

void Wire::schedule(int side, TimeUs at_us) {
  directions_[side].is_due = true;
  network_.loop().schedule(at_us, [wire = shared_from_this(), side] { wire->arrive(side); });
}

void Wire::arrive(int side) {
  Direction& direction = directions_[side];
  if (network_.cut_since_us(hosts_[side], hosts_[1 - side]) != kNever) {
    return schedule(side, network_.time().now_us() + kRetransmitUs);
  }
  OnItsWay first = std::move(direction.chunks.front());
  direction.chunks.pop_front();
  direction.is_due = false;
  if (!direction.chunks.empty()) schedule(side, direction.chunks.front().arrival_us);
  deliver(1 - side, std::move(first.chunk));
}

template <typename Message>
void Wire::tell(int side, Message message) {
  SimConnection* const end = ends_[side];
  if (end == nullptr) return;
  end->loop().post([end, alive = end->alive(), message = std::move(message)]() mutable {
    if (!alive.expired()) std::invoke(message, *end);
  });
}

void Wire::deliver(int side, Chunk chunk) {
  if (ends_[side] != nullptr) {
    return tell(side,
                [chunk = std::move(chunk)](SimConnection& end) mutable { end.on_chunk(std::move(chunk)); });
  }
  if (chunk.kind == Chunk::Kind::kEnd) return;
  directions_[1 - side].unread = 0;
  tell(1 - side, &SimConnection::on_reset);
}

void Wire::reset() {
  tell(0, &SimConnection::on_reset);
  tell(1, &SimConnection::on_reset);
}

void Wire::on_read(int side, size_t bytes) {
  Direction& direction = directions_[1 - side];
  direction.read_bytes += bytes;
  direction.unread -= std::min(bytes, direction.unread);
  if (direction.unread == 0 && direction.busy_since_us != kNever) {
    direction.busy_us += network_.time().now_us() - std::exchange(direction.busy_since_us, kNever);
  }
  tell(1 - side, &SimConnection::on_room);
}

transport::SentTraffic Wire::sent_traffic(int side) const {
  const Direction& direction = directions_[side];
  const bool is_busy = direction.busy_since_us != kNever;
  const TimeUs busy_us = is_busy ? network_.time().now_us() - direction.busy_since_us : 0;
  return {.bytes = direction.read_bytes,
          .busy_us = direction.busy_us + busy_us,
          .resent_bytes = direction.read_bytes / network_.options().bytes_of_loss};
}

void Wire::detach(int side) {
  ends_[side] = nullptr;
  send(side, {.kind = Chunk::Kind::kEnd});
}

TimeUs Wire::cut_since_us() const {
  return std::min(network_.cut_since_us(hosts_[0], hosts_[1]), network_.cut_since_us(hosts_[1], hosts_[0]));
}

}  // namespace byteps::sim
