// A second scheduler state, which takes the place of the scheduler if that is lost. Pure.
//
// The scheduler (Replication) sends every event (protocol/scheduler_event.h) to its standby, which
// applies it to a state of its own (SchedulerReplica). What follows from an event is sent to the nodes only
// when the standby has the event. So whatever any node has heard, the standby knows; and a scheduler
// that was only stopped, or is cut off, can tell nobody anything after the standby has taken over.
// Nodes count the messages that they send and get: when they come to the standby, both ends send again
// what the other one lacks (MessageLog), so each message counts once.
//
// The standby is in the process of rank 0. A job does not survive the loss of a worker, so the
// standby is there as long as the job is. If rank 0 leaves in order before the others, there is no
// standby any more. A scheduler in rank 0's process needs none.
//
// Source: a state machine with a primary and one backup, as in Budhiraja, Marzullo, Schneider, and
// Toueg, "The primary-backup approach", in Distributed Systems, 2nd edition, 1993, section 8.3.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/message_log.h"
#include "protocol/scheduler_event.h"
#include "protocol/scheduler_state.h"

namespace byteps::protocol {

// The scheduler's side.
class Replication {
 public:
  // Events are kept until there is a standby.
  explicit Replication(const SchedulerOrigin& origin) { stream_.push_back(encode(origin)); }

  bool has_begun() const { return phase_ != Phase::kWaiting; }
  // `peer` is the standby from now on. To be called once, before the event that says so.
  void begin(PeerId peer, SchedulerActions& released);
  // The event has led to `actions`. What may be carried out now is added to `released`.
  void on_event(const SchedulerEvent& event, SchedulerActions actions, SchedulerActions& released);
  // kDataLoss if the message fits no Replicate.
  Status on_replicated(PeerId peer, const Replicated& message, SchedulerActions& released);
  // There is no standby any more: nothing is held back.
  void end(SchedulerActions& released);

  // Number of the peer's messages that the standby has, or need not have.
  uint64_t confirmed(PeerId peer) const;

 private:
  struct Held {
    uint64_t number;  // of its Replicate
    PeerId peer;
    bool is_message;
    bool is_leave;
    SchedulerActions actions;
  };
  void replicate(std::vector<std::byte> content, SchedulerActions& released);
  void release(Held held, SchedulerActions& released);

  enum class Phase : uint8_t { kWaiting, kRunning, kEnded } phase_ = Phase::kWaiting;
  PeerId standby_ = 0;
  std::vector<std::vector<std::byte>> stream_;  // kWaiting: what the standby will get
  uint64_t next_number_ = 0;
  std::deque<Held> held_;
  std::unordered_map<PeerId, uint64_t> confirmed_;
};

// The standby's side.
class SchedulerReplica {
 public:
  // A peer's connection to the scheduler.
  struct Session {
    uint64_t received = 0;  // sequenced messages of the peer
    MessageLog sent;
  };

  // kDataLoss if the content is invalid, or the number is not the next one. `now`: of this
  // process's clock.
  Status on_replicate(const Replicate& message, TimeUs now);
  bool is_ready() const { return state_.has_value(); }

  // After the last event: the parts of the new scheduler. Precondition: is_ready().
  SchedulerState& state() { return *state_; }
  std::unordered_map<PeerId, Session>& sessions() { return sessions_; }
  // To be added to this process's clock for times of `state`.
  TimeUs clock_offset_us() const { return clock_offset_us_; }

 private:
  void apply_event(const SchedulerEvent& event);
  void note_sent(const SchedulerAction& action);

  std::optional<SchedulerState> state_;
  std::unordered_map<PeerId, Session> sessions_;
  uint64_t next_number_ = 0;
  TimeUs clock_offset_us_ = 0;
};

}  // namespace byteps::protocol
