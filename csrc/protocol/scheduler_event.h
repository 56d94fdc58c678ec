// What happens to a SchedulerState, as a value: who applies the same events to a state with the same
// options has the same state (protocol/standby.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "protocol/scheduler_state.h"

namespace byteps::protocol {

struct SchedulerEvent {
  enum class Kind : uint8_t {
    kMessage = 1,  // a sequenced one, from `peer`
    kClosed,       // the connection of `peer`, because of `why`
    kTick,
    kHeartbeat,  // of `peer`, which has got the first `count` sequenced messages
  };
  Kind kind = Kind::kTick;
  PeerId peer = 0;
  TimeUs now_us = 0;  // of the scheduler's clock
  Control message = Heartbeat{};
  Status why = {};
  uint64_t count = 0;
};

void apply(const SchedulerEvent& event, SchedulerState& state, SchedulerActions& actions);

// What a SchedulerState is made of.
struct SchedulerOrigin {
  SchedulerOptions options;
  TimeUs now_us = 0;
};

// The content of a Replicate. Decoding returns kDataLoss for bytes that are nothing of the kind.
std::vector<std::byte> encode(const SchedulerOrigin& origin);
std::vector<std::byte> encode(const SchedulerEvent& event);
Result<SchedulerOrigin> decode_origin(Bytes bytes);
Result<SchedulerEvent> decode_event(Bytes bytes);

}  // namespace byteps::protocol
