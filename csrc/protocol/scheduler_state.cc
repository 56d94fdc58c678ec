#include "protocol/scheduler_state.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {
namespace {

constexpr size_t kMostFailedRounds = 64;

// Placement 0 is the first one and never comes again: see TensorDirectory::locations_for.
uint8_t next_placement(uint8_t placement) {
  return placement == UINT8_MAX ? uint8_t{1} : static_cast<uint8_t>(placement + 1);
}

}  // namespace

SchedulerState::SchedulerState(SchedulerOptions options, TimeUs now)
    : options_(options),
      start_deadline_us_(now + options.start_timeout_us),
      notices_(now),
      numbering_(options.num_workers, options.num_servers) {}

void SchedulerState::on_message(PeerId peer, const Control& message, TimeUs now, SchedulerActions& actions) {
  if (successor_ && peer == successor_->peer) return on_message_of_successor(message, now, actions);
  auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) {
    if (const auto* standby = std::get_if<Standby>(&message); standby && phase_ == Phase::kJoining)
      return move_to(peer, standby->address, now, actions);
    if (const auto* join = std::get_if<Join>(&message)) return on_join(peer, *join, now, actions);
    actions.emplace_back(ClosePeer{peer});
    return;
  }
  const uint32_t member = found->second;
  members_[member].last_heard_us = now;
  if (std::holds_alternative<Heartbeat>(message)) {
    actions.emplace_back(SendTo{peer, Heartbeat{}});
  } else if (phase_ <= Phase::kRunning) {
    on_member_message(member, message, now, actions);
  }
}

void SchedulerState::on_member_message(uint32_t member, const Control& message, TimeUs now,
                                       SchedulerActions& actions) {
  if (members_[member].left) return;
  if (const auto* leave = std::get_if<Leave>(&message)) return on_leave(member, leave->cause, now, actions);
  if (std::holds_alternative<Join>(message)) return expel(member, "joined a second time", actions);
  if (phase_ != Phase::kJoining && is_one_of<ProbeReady, ProbeDone>(message))
    return on_probe_answer(member, message, now, actions);
  if (phase_ != Phase::kRunning) return expel(member, "did not wait for the start of the job", actions);
  if (const auto* suspect = std::get_if<Suspect>(&message)) return on_suspect(member, *suspect, now, actions);
  if (const auto* stalled = std::get_if<Stalled>(&message)) return on_stalled(member, *stalled, actions);
  if (const auto* leaving = std::get_if<Leaving>(&message)) return on_leaving(member, *leaving, actions);
  if (const auto* traffic = std::get_if<Traffic>(&message)) return on_traffic(member, *traffic, now, actions);
  if (members_[member].node.role == Role::kWorker) {
    if (const auto* declare = std::get_if<Declare>(&message)) return on_declare(member, *declare, actions);
    if (const auto* waits = std::get_if<Waits>(&message)) return on_waits(member, *waits, actions);
    if (const auto* failed = std::get_if<RoundFailed>(&message))
      return on_round_failed(member, *failed, actions);
    if (const auto* forget = std::get_if<Forget>(&message)) return on_forget(member, *forget, actions);
    if (const auto* barrier = std::get_if<Barrier>(&message))
      return on_barrier(member, *barrier, now, actions);
    if (const auto* standby = std::get_if<Standby>(&message)) return on_standby(member, *standby, actions);
    if (const auto* lingers = std::get_if<Lingers>(&message)) return on_lingers(member, *lingers, actions);
  }
  expel(member, "sent a message that nodes of its role must not send", actions);
}

void SchedulerState::on_declare(uint32_t rank, const Declare& declare, SchedulerActions& actions) {
  TensorDirectory::Answer answer = tensors_->declare(rank, declare);
  if (answer.to_all) return send_to_all(answer.message, actions);
  actions.emplace_back(SendTo{members_[rank].peer, std::move(answer.message)});
}

void SchedulerState::on_round_failed(uint32_t rank, const RoundFailed& failed, SchedulerActions& actions) {
  const std::optional<Refused> refused = tensors_->fail_round(rank, failed);
  if (!refused) return;
  send_to_all(*refused, actions);
  failed_rounds_.push_back(*refused);
  if (failed_rounds_.size() > kMostFailedRounds) failed_rounds_.pop_front();
}

void SchedulerState::on_forget(uint32_t rank, const Forget& forget, SchedulerActions& actions) {
  std::vector<ForgottenKeys> keys = tensors_->forget(rank, forget);
  if (!keys.empty()) send_to_all(Forgotten{std::move(keys)}, actions);
}

void SchedulerState::on_traffic(uint32_t member, const Traffic& traffic, TimeUs now,
                                SchedulerActions& actions) {
  if (!link_speeds_->learns()) return expel(member, "reported traffic without being asked", actions);
  const Status status = link_speeds_->on_report(member, traffic, now);
  if (!status.is_ok()) expel(member, status.message(), actions);
}

void SchedulerState::apply(LinkSpeeds::Change change, SchedulerActions& actions) {
  if (change.moves) {
    placement_ = next_placement(placement_);
    tensors_->change_shares(RootAssigner(link_speeds_->tree(), link_speeds_->shares()));
  }
  change.speeds.placement = placement_;
  send_to_all(change.speeds, actions);
}

void SchedulerState::on_standby(uint32_t member, const Standby& standby, SchedulerActions& actions) {
  if (member != 0 || !options_.has_standby || standby_)
    return expel(member, "offered a standby that was not asked for", actions);
  standby_ = standby.address;
  send_to_all(standby, actions);
}

void SchedulerState::on_leaving(uint32_t member, const Leaving& leaving, SchedulerActions& actions) {
  if (leaving.node >= members_.size()) return expel(member, "named a node that does not exist", actions);
  for (uint32_t other = 0; leaving.node == member && other < members_.size(); ++other) {
    const bool is_told = !members_[other].left && members_[member].unaware.insert(other).second;
    if (is_told && other != member) actions.emplace_back(SendTo{members_[other].peer, leaving});
  }
  on_aware(leaving.node, member, actions);
}

void SchedulerState::on_aware(uint32_t leaver, uint32_t member, SchedulerActions& actions) {
  std::set<uint32_t>& unaware = members_[leaver].unaware;
  if (unaware.erase(member) > 0 && unaware.empty())
    actions.emplace_back(SendTo{members_[leaver].peer, Leaving{leaver, {}}});
}

void SchedulerState::on_stalled(uint32_t member, const Stalled& stalled, SchedulerActions& actions) {
  const Stalled named{stalled.tensor, tensors_->name_of(stalled.tensor), stalled.text};
  actions.emplace_back(SendTo{members_[member].peer, named});
}

void SchedulerState::on_barrier(uint32_t rank, const Barrier& barrier, TimeUs now,
                                SchedulerActions& actions) {
  Barriers::Answers answers;
  Status status = barriers_->on_arrival(rank, barrier.sequence, now, answers);
  if (!status.is_ok()) return expel(rank, status.message(), actions);
  answer_barriers(answers, actions);
}

void SchedulerState::on_waits(uint32_t rank, const Waits& waits, SchedulerActions& actions) {
  members_[rank].waits_for = waits.what;
  if (!waits.asks || waits.what.empty()) return;
  actions.emplace_back(SendTo{members_[rank].peer, Waiting{waits.what + ": " + what_others_wait_for(rank)}});
}

std::string SchedulerState::what_others_wait_for(uint32_t rank) const {
  std::vector<std::string> others;
  for (uint32_t other = 0; other < numbering_.num_workers(); ++other) {
    const Member& member = members_[other];
    if (member.left || member.waits_for == members_[rank].waits_for) continue;
    const std::string what = member.waits_for.empty() ? "nothing" : member.waits_for;
    others.push_back(member.node.describe() + " waits for " + what);
  }
  return others.empty() ? "all ranks wait for it" : enumerate(others);
}

void SchedulerState::on_lingers(uint32_t member, const Lingers& lingers, SchedulerActions& actions) {
  if (lingers.node != member) return expel(member, "spoke for another node", actions);
  if (std::exchange(members_[member].lingers, true)) return;
  send_to_all(lingers, actions);
  Barriers::Answers answers;
  barriers_->on_left(member, answers);
  answer_barriers(answers, actions);
  tell_if_all_linger(actions);
}

void SchedulerState::tell_if_all_linger(SchedulerActions& actions) {
  const auto is_through = [](const Member& each) {
    return each.left || each.lingers || each.node.role == Role::kServer;
  };
  if (std::ranges::all_of(members_, is_through)) send_to_all(AllLinger{}, actions);
}

void SchedulerState::on_leave(uint32_t member, const std::string& cause, TimeUs now,
                              SchedulerActions& actions) {
  const NodeInfo& node = members_[member].node;
  const Status ended = unavailable(node.describe() + " ended by " + cause);
  const Status went = unavailable(node.describe() + " left while workers still use it");
  if (may_lose(member)) return lose(member, cause.empty() ? went : ended, now, actions);
  members_[member].left = true;
  if (!cause.empty()) return fail(ended, actions);
  const auto fail_with = [&](const char* when) { fail(unavailable(node.describe() + when), actions); };
  if (phase_ == Phase::kJoining) return fail_with(" left before all had joined");
  if (phase_ == Phase::kMeasuring) return fail_with(" left before the job had started");
  if (node.role == Role::kServer) return fail(went, actions);
  ++epoch_;
  std::erase_if(suspicions_,
                [member](const Suspicion& s) { return s.reporter == member || s.node == member; });
  if (member == 0 && has_standby()) {
    standby_ = "";
    send_to_all(Standby{}, actions);
  }
  send_to_all(Left{epoch_, member}, actions);
  for (uint32_t other = 0; other < members_.size(); ++other) on_aware(other, member, actions);
  Barriers::Answers answers;
  barriers_->on_left(member, answers);
  answer_barriers(answers, actions);
  tell_if_all_linger(actions);
  const auto is_done = [](const Member& each) { return each.left || each.node.role == Role::kServer; };
  if (std::ranges::all_of(members_, is_done)) finish("all workers have left", actions);
}

void SchedulerState::expel(uint32_t member, const std::string& why, SchedulerActions& actions) {
  fail(data_loss(members_[member].node.describe() + " broke the protocol: " + why), actions);
  actions.emplace_back(ClosePeer{members_[member].peer});
  member_of_peer_.erase(members_[member].peer);
  members_[member].connected = false;
}

void SchedulerState::on_closed(PeerId peer, const Status& why, TimeUs now, SchedulerActions& actions) {
  if (phase_ == Phase::kMoved && peer == successor_->peer)
    return fail(unavailable("the scheduler at " + successor_->address + " has gone: " + why.message()),
                actions);
  auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) return;
  const uint32_t number = found->second;
  Member& member = members_[number];
  member_of_peer_.erase(found);
  member.connected = false;
  if (member.left) return;
  if (phase_ == Phase::kJoining) {
    fail(unavailable(member.node.describe() + " ended before all had joined: " + why.message()), actions);
  } else if (phase_ == Phase::kMeasuring || phase_ == Phase::kRunning) {
    lose(number, unavailable(member.node.describe() + " ended without leaving: " + why.message()), now,
         actions);
  }
}

void SchedulerState::on_tick(TimeUs now, SchedulerActions& actions) {
  if (phase_ == Phase::kJoining && now >= join_deadline_us()) fail_to_start(now, actions);
  if (phase_ == Phase::kJoining) say_who_is_missing(now, actions);
  if (phase_ == Phase::kMeasuring) {
    survey_->on_tick(now);
    go_on_measuring({}, now, actions);
  }
  if (phase_ == Phase::kMoved && now - successor_->last_heard_us >= options_.timeout_us)
    fail(unavailable("the scheduler at " + successor_->address + " is silent"), actions);
  if (phase_ == Phase::kRunning) check_silence(now, actions);
  if (phase_ == Phase::kRunning) check_suspicions(now, actions);
  if (phase_ != Phase::kRunning) return;
  if (auto change = link_speeds_->on_tick(now)) apply(std::move(*change), actions);
  Barriers::Answers answers;
  barriers_->on_tick(now, answers);
  answer_barriers(answers, actions);
}

TimeUs SchedulerState::next_tick_us() const {
  if (phase_ == Phase::kJoining) return std::min(join_deadline_us(), notices_.next_us());
  if (phase_ == Phase::kMeasuring) return survey_->next_tick_us();
  if (phase_ == Phase::kMoved) return successor_->last_heard_us + options_.timeout_us;
  if (phase_ != Phase::kRunning) return kNever;
  TimeUs next = std::min({barriers_->next_tick_us(), silence_check_us_, link_speeds_->next_tick_us()});
  for (const Suspicion& suspicion : suspicions_) next = std::min(next, verdict_us(suspicion));
  return next;
}

void SchedulerState::on_shutdown(const std::string& text, SchedulerActions& actions) {
  if (phase_ < Phase::kRunning) fail(unavailable("the job has not started: " + text), actions);
  while (phase_ == Phase::kRunning && !suspicions_.empty()) check_suspicions(kNever, actions);
  if (phase_ == Phase::kRunning || phase_ == Phase::kMoved) finish(text, actions);
}

void SchedulerState::answer_barriers(const Barriers::Answers& answers, SchedulerActions& actions) {
  for (const auto& [rank, sequence, status] : answers) {
    if (!members_[rank].connected) continue;
    actions.emplace_back(SendTo{members_[rank].peer, BarrierDone{sequence, status.code(), status.message()}});
  }
}

void SchedulerState::send_to_all(const Control& message, SchedulerActions& actions) {
  for (const Member& member : members_) {
    if (member.connected) actions.emplace_back(SendTo{member.peer, message});
  }
}

void SchedulerState::fail(Status why, SchedulerActions& actions) {
  phase_ = Phase::kFailed;
  failure_ = std::move(why);
  send_to_all(Lost{failure_.code(), failure_.message()}, actions);
}

void SchedulerState::finish(const std::string& text, SchedulerActions& actions) {
  phase_ = Phase::kFinished;
  send_to_all(Finished{text}, actions);
}

}  // namespace byteps::protocol
