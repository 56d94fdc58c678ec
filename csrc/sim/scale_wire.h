// One direction of a connection between two machines: what protocol/outbox and protocol/pacing
// decide, and when the bytes arrive. Pure.
//
// A paced wire carries its own rate, whatever the others do: pacing divides the cards so that the
// rates of all connections fit (protocol/pacing.h). A wire that is not held to its rate carries an
// even part of the slowest card on its way.
#pragma once

#include <cstdint>
#include <deque>

#include "protocol/outbox.h"
#include "protocol/pacing.h"
#include "sim/scale_events.h"

namespace byteps::sim {

struct ScaleWireOptions {
  uint64_t paced_bytes_per_s = 0;  // 0: never held
  double free_bytes_per_s = 1;     // while it is not held
  double latency_s = 0;
  // Number of wires that do the same at the same time, which this one stands for.
  uint64_t count = 1;
  // Answers only: the outbox of the same thread's contributions; null: there are none.
  const protocol::Outbox* contributions = nullptr;
};

class ScaleWire {
 public:
  // `kind`: of all that it carries. `outbox`: of the thread that sends.
  ScaleWire(const ScaleWireOptions& options, protocol::Outbox::Kind kind, protocol::Outbox& outbox,
            ScaleEvents& events);
  ScaleWire(const ScaleWire&) = delete;
  ScaleWire& operator=(const ScaleWire&) = delete;

  // `arrived` is called when the last byte has arrived.
  void send(int32_t priority, uint64_t bytes, ScaleEvents::Event arrived);

 private:
  struct Message {
    uint64_t bytes;
    ScaleEvents::Event arrived;
  };

  void hand_over(Message message);
  void transmit();

  ScaleWireOptions options_;
  protocol::Outbox& outbox_;
  ScaleEvents& events_;
  protocol::Outbox::Port port_;
  protocol::Pacer pacer_;
  double bytes_per_s_;
  std::deque<Message> handed_over_;  // the first one is being transmitted
};

}  // namespace byteps::sim
