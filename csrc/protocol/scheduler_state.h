// The scheduler's decisions: who is in the job, where tensors go, who is lost. Pure.
//
// Phases: joining -> running -> ended (in order, or failed). Failure is final and told to everybody once, naming
// the guilty node, its host and the cause. Nothing here is on the data path.
//
// Peers are connections, numbered by the caller; a peer becomes a node by its Join.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/placement.h"

namespace byteps::protocol {

using PeerId = uint64_t;

struct SendTo {
  PeerId peer;
  Control message;
};
// Close the connection after what was sent to it; no event of it counts any more.
struct ClosePeer {
  PeerId peer;
};
using SchedulerAction = std::variant<SendTo, ClosePeer>;
using SchedulerActions = std::vector<SchedulerAction>;

struct SchedulerOptions {
  uint32_t num_workers = 0;  // 0: as the first worker says
  uint32_t num_servers = 0;
  TimeUs start_timeout_us = 0;  // all nodes must have joined so long after the start
  TimeUs timeout_us = 0;        // a node silent for so long is lost
  TimeUs op_timeout_us = 0;     // a barrier that lacks a rank for so long fails
  uint64_t partition_bytes = 0;
  PlacementPolicy placement = PlacementPolicy::kAuto;
};

class SchedulerState {
 public:
  SchedulerState(SchedulerOptions options, TimeUs now);

  void on_message(PeerId peer, const Control& message, TimeUs now, SchedulerActions& actions);
  // The connection ended without ClosePeer. A node that has not left is lost.
  void on_closed(PeerId peer, const Status& why, TimeUs now, SchedulerActions& actions);
  // Start deadline, silence, suspicions, barriers.
  void on_tick(TimeUs now, SchedulerActions& actions);
  TimeUs next_tick_us() const;
  // The scheduler's own process leaves in order (it lives in rank 0): everybody is told with Finished.
  void on_shutdown(const std::string& text, SchedulerActions& actions);

  enum class Phase : uint8_t { kJoining, kRunning, kFinished, kFailed };
  Phase phase() const { return phase_; }
  const Status& failure() const { return failure_; }  // ok unless kFailed

 private:
  Phase phase_ = Phase::kJoining;
  Status failure_;
  // … the implementation's own members
};

}  // namespace byteps::protocol
