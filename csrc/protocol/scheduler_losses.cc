// SchedulerState: which nodes are lost, and whether the job goes on without them.
#include <algorithm>
#include <utility>

#include "protocol/scheduler_state.h"
#include "protocol/successors.h"
#include "protocol/text.h"

namespace byteps::protocol {

void SchedulerState::on_suspect(uint32_t member, const Suspect& suspect, TimeUs now,
                                SchedulerActions& actions) {
  if (suspect.node >= members_.size()) return expel(member, "suspects a node that does not exist", actions);
  if (suspect.node == member) {
    return lose(member, unavailable(members_[member].node.describe() + ": " + suspect.text), now, actions);
  }
  const bool known = find_suspicion(member, suspect.node) != suspicions_.end();
  if (known || members_[suspect.node].left) return;
  suspicions_.push_back({member, suspect.node, suspect.text, now});
}

void SchedulerState::check_silence(TimeUs now, SchedulerActions& actions) {
  if (now < silence_check_us_) return;
  silence_check_us_ = kNever;
  for (uint32_t number = 0; number < members_.size(); ++number) {
    const Member& member = members_[number];
    if (member.left) continue;
    if (now - member.last_heard_us >= options_.timeout_us) {
      const std::string silent = " has been silent for " + seconds(now - member.last_heard_us);
      lose(number, unavailable(member.node.describe() + silent), now, actions);
      if (phase_ == Phase::kFailed) return;
      continue;
    }
    silence_check_us_ = std::min(silence_check_us_, member.last_heard_us + options_.timeout_us);
  }
}

bool SchedulerState::may_lose(uint32_t member) const {
  return options_.failover && phase_ == Phase::kRunning && members_[member].node.role == Role::kServer;
}

void SchedulerState::lose(uint32_t number, const Status& why, TimeUs now, SchedulerActions& actions) {
  if (!may_lose(number)) return fail(why, actions);
  Member& member = members_[number];
  member.left = true;
  if (member.connected) {
    refuse(member.peer, why, actions);
    member_of_peer_.erase(member.peer);
    member.connected = false;
  }
  std::erase_if(suspicions_,
                [number](const Suspicion& s) { return s.reporter == number || s.node == number; });
  barriers_->restart_waits(now);
  const std::vector<double> before = link_speeds_->shares();
  const LinkSpeeds::Change change = link_speeds_->lose(number);
  send_to_all(Removed{number, why.message(), successor_weights(before, link_speeds_->shares()),
                      tensors_->has_stored()},
              actions);
  for (uint32_t other = 0; other < members_.size(); ++other) on_aware(other, number, actions);
  apply(change, actions);
}

void SchedulerState::take_over(TimeUs now) {
  standby_ = "";
  for (Member& member : members_) member.last_heard_us = now;
  silence_check_us_ = now + options_.timeout_us;
  for (Suspicion& suspicion : suspicions_) suspicion.reported_us = now;
}

std::optional<PeerId> SchedulerState::peer_of(uint32_t node) const {
  if (node >= members_.size() || !members_[node].connected) return std::nullopt;
  return members_[node].peer;
}

std::string SchedulerState::service_of(PeerId peer) const {
  const auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) return "";
  const auto addresses = members_[found->second].node.addresses("tcp");
  return addresses.empty() ? "" : addresses.front();
}

std::vector<PeerId> SchedulerState::present() const {
  std::vector<PeerId> peers;
  for (const Member& member : members_) {
    if (member.connected && !member.left) peers.push_back(member.peer);
  }
  return peers;
}

std::vector<SchedulerState::Suspicion>::const_iterator SchedulerState::find_suspicion(uint32_t reporter,
                                                                                      uint32_t node) const {
  return std::ranges::find_if(
      suspicions_, [=](const Suspicion& each) { return each.reporter == reporter && each.node == node; });
}

void SchedulerState::check_suspicions(TimeUs now, SchedulerActions& actions) {
  const auto due =
      std::ranges::find_if(suspicions_, [&](const Suspicion& each) { return now >= verdict_us(each); });
  if (due == suspicions_.end()) return;
  std::string what = members_[due->reporter].node.describe() + " lost its connection to " +
                     members_[due->node].node.describe() + ": " + due->text;
  // The other end's report often has the cause, where this end only saw the connection close.
  const auto counterpart = find_suspicion(due->node, due->reporter);
  if (counterpart != suspicions_.end()) what += "; at the other end: " + counterpart->text;
  // The job can go on without a server only.
  const uint32_t lost = may_lose(due->reporter) ? due->reporter : due->node;
  lose(lost, unavailable(what), now, actions);
}

// One of the two nodes may have died; then its own connection ends soon, or its silence is
// detected.
TimeUs SchedulerState::verdict_us(const Suspicion& suspicion) const {
  const auto heard_since = [&](uint32_t member) {
    return members_[member].last_heard_us > suspicion.reported_us;
  };
  const bool both_are_well = heard_since(suspicion.reporter) && heard_since(suspicion.node);
  return suspicion.reported_us +
         (both_are_well ? options_.timeout_us / kHeartbeatsPerTimeout : options_.timeout_us);
}

}  // namespace byteps::protocol
