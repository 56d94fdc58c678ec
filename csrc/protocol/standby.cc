#include "protocol/standby.h"

#include <string>
#include <utility>
#include <variant>

namespace byteps::protocol {

using Kind = SchedulerEvent::Kind;

void Replication::begin(PeerId peer, SchedulerActions& released) {
  phase_ = Phase::kRunning;
  standby_ = peer;
  for (std::vector<std::byte>& content : std::exchange(stream_, {})) replicate(std::move(content), released);
}

void Replication::replicate(std::vector<std::byte> content, SchedulerActions& released) {
  released.emplace_back(SendTo{standby_, Replicate{next_number_++, std::move(content)}});
}

void Replication::on_event(const SchedulerEvent& event, SchedulerActions actions,
                           SchedulerActions& released) {
  const bool is_message = event.kind == Kind::kMessage;
  Held held{.number = next_number_,
            .peer = event.peer,
            .is_message = is_message,
            .is_leave = is_message && std::holds_alternative<Leave>(event.message),
            .actions = std::move(actions)};
  if (phase_ == Phase::kWaiting) stream_.push_back(encode(event));
  if (phase_ != Phase::kRunning) return release(std::move(held), released);
  replicate(encode(event), released);
  if (event.kind == Kind::kHeartbeat) return release(std::move(held), released);  // answered at once
  held_.push_back(std::move(held));
}

Status Replication::on_replicated(PeerId peer, const Replicated& message, SchedulerActions& released) {
  if (phase_ == Phase::kEnded) return Status::ok();
  if (phase_ != Phase::kRunning || peer != standby_ || message.number >= next_number_)
    return data_loss("Replicated " + std::to_string(message.number) + " confirms nothing that was sent");
  while (!held_.empty() && held_.front().number <= message.number) {
    release(std::move(held_.front()), released);
    held_.pop_front();
  }
  return Status::ok();
}

// A node that leaves waits until it knows that its message counts.
void Replication::release(Held held, SchedulerActions& released) {
  for (SchedulerAction& action : held.actions) released.push_back(std::move(action));
  if (held.is_message) ++confirmed_[held.peer];
  if (held.is_leave) released.emplace_back(SendTo{held.peer, Heartbeat{}});
}

void Replication::end(SchedulerActions& released) {
  phase_ = Phase::kEnded;
  stream_.clear();
  for (Held& held : std::exchange(held_, {})) release(std::move(held), released);
}

uint64_t Replication::confirmed(PeerId peer) const {
  const auto found = confirmed_.find(peer);
  return found == confirmed_.end() ? 0 : found->second;
}

Status SchedulerReplica::on_replicate(const Replicate& message, TimeUs now) {
  if (message.number != next_number_) {
    return data_loss("Replicate: expected number " + std::to_string(next_number_) + ", got " +
                     std::to_string(message.number));
  }
  ++next_number_;
  if (message.number == 0) {
    const Result<SchedulerOrigin> origin = decode_origin(message.content);
    if (!origin) return origin.status();
    state_.emplace(origin->options, origin->now_us);
    return Status::ok();
  }
  const Result<SchedulerEvent> event = decode_event(message.content);
  if (!event) return event.status();
  apply_event(*event);
  clock_offset_us_ = event->now_us - now;
  return Status::ok();
}

void SchedulerReplica::apply_event(const SchedulerEvent& event) {
  const auto known = sessions_.find(event.peer);
  if (event.kind == Kind::kHeartbeat && known != sessions_.end()) known->second.sent.confirm(event.count);
  if (event.kind == Kind::kMessage) ++sessions_[event.peer].received;
  if (event.kind == Kind::kClosed) sessions_.erase(event.peer);
  SchedulerActions actions;
  apply(event, *state_, actions);
  for (const SchedulerAction& action : actions) note_sent(action);
}

// Who knows of the standby has got all before it, so that need not be kept: rosters are large.
void SchedulerReplica::note_sent(const SchedulerAction& action) {
  const auto keep = [this](PeerId peer, const Control& message, bool is_known) {
    const auto found = sessions_.find(peer);
    if (found == sessions_.end() || !is_sequenced(message)) return;
    found->second.sent.push(message);
    if (is_known) found->second.sent.confirm_all();
  };
  if (const auto* send = std::get_if<SendTo>(&action)) {
    keep(send->peer, send->message, is_one_of<Standby, Roster>(send->message));
  } else if (const auto* roster = std::get_if<SendRoster>(&action)) {
    for (const PeerId peer : roster->peers) keep(peer, Roster{}, true);
  } else if (const auto* close = std::get_if<ClosePeer>(&action)) {
    sessions_.erase(close->peer);
  }
}

}  // namespace byteps::protocol
