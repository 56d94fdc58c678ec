#include "sim/scale_wire.h"

#include <memory>
#include <utility>

#include "base/clock.h"

namespace byteps::sim {

ScaleWire::ScaleWire(const ScaleWireOptions& options, protocol::Outbox::Kind kind, protocol::Outbox& outbox,
                     ScaleEvents& events)
    : options_(options),
      outbox_(outbox),
      events_(events),
      port_(outbox, kind),
      pacer_(options.paced_bytes_per_s),
      bytes_per_s_(options.free_bytes_per_s) {}

void ScaleWire::send(int32_t priority, uint64_t bytes, ScaleEvents::Event arrived) {
  port_.push(priority, bytes, [this, bytes, arrived = std::move(arrived)]() mutable {
    hand_over({bytes, std::move(arrived)});
  });
}

void ScaleWire::hand_over(Message message) {
  const bool rest = options_.contributions != nullptr && options_.contributions->has_contributed();
  const TimeUs now = seconds_to_us(events_.now_s());
  const auto rate = pacer_.on_send(message.bytes, now, outbox_.burst(), rest, options_.count);
  if (rate) bytes_per_s_ = *rate > 0 ? static_cast<double>(*rate) : options_.free_bytes_per_s;
  handed_over_.push_back(std::move(message));
  if (handed_over_.size() == 1) transmit();
}

void ScaleWire::transmit() {
  const double last_byte_s = events_.now_s() + static_cast<double>(handed_over_.front().bytes) / bytes_per_s_;
  events_.at(last_byte_s, [this] {
    Message message = std::move(handed_over_.front());
    handed_over_.pop_front();
    events_.at(events_.now_s() + options_.latency_s, std::move(message.arrived));
    if (!handed_over_.empty()) transmit();
    port_.sent(message.bytes);
  });
}

}  // namespace byteps::sim
