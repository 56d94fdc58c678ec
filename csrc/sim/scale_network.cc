#include "sim/scale_network.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr uint64_t kEventsBetweenQuestions = 1 << 18;  // about a tenth of a second

}  // namespace

ScaleNetwork::ScaleNetwork(const ScaleNetworkOptions& options, ScaleEvents& events)
    : latency_s_(options.latency_s), events_(events) {
  for (const double speed : options.bytes_per_s) {
    BPS_CHECK(speed > 0) << "a card sends " << speed << " bytes a second";
    cards_.emplace_back(speed, options.credit_bytes, options.bytes_per_s.size());
  }
}

void ScaleNetwork::send(int32_t priority, const ScaleMessage& message) {
  if (message.from == message.to) return schedule(now_s_, Kind::kComplete, message);
  Card& card = cards_[message.from];
  const auto kind =
      message.is_result ? protocol::Outbox::Kind::kAnswer : protocol::Outbox::Kind::kContribution;
  card.port.push(priority, kind, message.bytes, [this, &card, message] { transmit(card, message); });
}

bool ScaleNetwork::run(const std::function<bool()>& keep_going) {
  for (uint64_t count = 1; !heap_.empty(); ++count) {
    if (count % kEventsBetweenQuestions == 0 && !keep_going()) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    const Event event = heap_.back();
    heap_.pop_back();
    now_s_ = event.at;
    dispatch(event);
  }
  return true;
}

void ScaleNetwork::schedule(double when_s, Kind kind, const ScaleMessage& message) {
  heap_.push_back({{when_s, next_sequence_++}, message, kind});
  std::push_heap(heap_.begin(), heap_.end());
}

void ScaleNetwork::dispatch(const Event& event) {
  switch (event.kind) {
    case Kind::kTimer: return events_.on_timer(event.message.tensor);
    case Kind::kArrives: return on_first_byte(event.message);
    case Kind::kReceived: return on_received(cards_[event.message.to]);
    case Kind::kComplete: return events_.on_message(event.message);
    case Kind::kSent: break;
  }
  cards_[event.message.from].port.sent(event.message.bytes);
}

void ScaleNetwork::transmit(Card& card, const ScaleMessage& message) {
  const double start_s = std::max(now_s_, card.sends_until_s);
  card.sends_until_s = start_s + message.bytes / card.bytes_per_s;
  schedule(card.sends_until_s, Kind::kSent, message);
  schedule(start_s + latency_s_, Kind::kArrives, message);
}

void ScaleNetwork::on_first_byte(const ScaleMessage& message) {
  Card& card = cards_[message.to];
  double& tag = card.last_tag_of_sender[message.from];
  tag = std::max(tag, card.current_tag);
  const double last_byte_s = now_s_ + message.bytes / cards_[message.from].bytes_per_s;
  card.incoming.push_back({{tag, next_sequence_++}, last_byte_s, message});
  std::push_heap(card.incoming.begin(), card.incoming.end());
  tag += message.bytes;
  if (!card.receiving) receive_next(card);
}

void ScaleNetwork::receive_next(Card& card) {
  if (card.incoming.empty()) return;
  std::pop_heap(card.incoming.begin(), card.incoming.end());
  card.receiving = card.incoming.back();
  card.incoming.pop_back();
  card.current_tag = card.receiving->at;
  const ScaleMessage& message = card.receiving->message;
  schedule(now_s_ + message.bytes / card.bytes_per_s, Kind::kReceived, message);
}

void ScaleNetwork::on_received(Card& card) {
  const Incoming received = *std::exchange(card.receiving, std::nullopt);
  receive_next(card);
  if (received.last_byte_s > now_s_) return schedule(received.last_byte_s, Kind::kComplete, received.message);
  events_.on_message(received.message);
}

}  // namespace byteps::sim
