#include "protocol/membership.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "protocol/text.h"

namespace byteps::protocol {

Membership::Membership(std::string scheduler, bool hosted_by_rank_0, TimeUs start_deadline_us,
                       TimeUs timeout_us)
    : scheduler_(std::move(scheduler)),
      hosted_by_rank_0_(hosted_by_rank_0),
      start_deadline_us_(start_deadline_us),
      timeout_us_(timeout_us) {}

void Membership::on_connected(Join join, TimeUs now, MembershipActions& actions) {
  if (ended()) return;
  connected_ = true;
  answered_ = false;
  last_heard_us_ = now;
  next_heartbeat_us_ = now + timeout_us_ / kHeartbeatsPerTimeout;
  actions.emplace_back(SendControl{std::move(join)});
}

Status Membership::on_message(const Control& message, TimeUs now, MembershipActions& actions) {
  if (ended()) return Status::ok();
  answered_ = true;
  last_heard_us_ = now;
  if (const auto* roster = std::get_if<Roster>(&message)) return on_roster(*roster, now, actions);
  if (const auto* left = std::get_if<Left>(&message)) return on_left(*left, actions);
  if (const auto* removed = std::get_if<Removed>(&message)) return on_removed(*removed, actions);
  if (const auto* added = std::get_if<Added>(&message)) return on_added(*added, actions);
  if (const auto* lost = std::get_if<Lost>(&message)) {
    fail(Status(lost->code, lost->text), actions);
  } else if (const auto* finished = std::get_if<Finished>(&message)) {
    finish(finished->text, now, actions);
  } else if (const auto* standby = std::get_if<Standby>(&message)) {
    if (started()) {
      standby_ = standby->address;
    } else {
      connected_ = false;
      actions.emplace_back(JoinElsewhere{standby->address});
    }
  } else if (const auto* waiting = std::get_if<Waiting>(&message)) {
    actions.emplace_back(LogStillWaiting{waiting->text});
  } else {
    const bool is_the_schedulers =
        is_one_of<Heartbeat, Placed, Refused, BarrierDone, Stalled, Leaving, Forgotten>(message) ||
        (started() && is_one_of<Speeds, Lingers, AllLinger, Replicate, Resumed>(message)) ||
        (!started() && is_one_of<ProbeSetup, ProbeStart>(message));
    if (!is_the_schedulers) return data_loss(name_scheduler() + " sent a message that only nodes send");
  }
  return Status::ok();
}

Status Membership::on_roster(const Roster& roster, TimeUs now, MembershipActions& actions) {
  if (roster_) return data_loss(name_scheduler() + " sent a second roster");
  roster_ = roster;
  left_.resize(roster.nodes.size());
  for (const uint32_t server : roster.lost) left_[server] = true;
  timeout_us_ = static_cast<TimeUs>(roster.timeout_us);
  next_heartbeat_us_ = std::min(next_heartbeat_us_, now + timeout_us_ / kHeartbeatsPerTimeout);
  actions.emplace_back(JobStarted{});
  return Status::ok();
}

Status Membership::on_left(const Left& left, MembershipActions& actions) {
  if (!roster_ || left.node >= left_.size() || left_[left.node]) {
    return data_loss(name_scheduler() + " reports that node " + std::to_string(left.node) +
                     " has left, but the job has no such node");
  }
  left_[left.node] = true;
  suspects_.erase(left.node);
  actions.emplace_back(NodeLeft{left.node});
  return Status::ok();
}

Status Membership::on_removed(const Removed& removed, MembershipActions& actions) {
  const bool is_server = roster_ && removed.node >= roster_->num_workers && removed.node < left_.size();
  if (!is_server || left_[removed.node]) {
    return data_loss(name_scheduler() + " has removed node " + std::to_string(removed.node) +
                     ", but the job has no such server");
  }
  left_[removed.node] = true;
  suspects_.erase(removed.node);
  actions.emplace_back(NodeRemoved{removed});
  return Status::ok();
}

Status Membership::on_added(const Added& added, MembershipActions& actions) {
  const size_t number = roster_ ? roster_->nodes.size() - roster_->num_workers : 0;
  if (!roster_ || number >= kMaxNodes || added.server.rank != static_cast<int32_t>(number)) {
    return data_loss(name_scheduler() + " has added server " + std::to_string(added.server.rank) +
                     ", but the next one has number " + std::to_string(number));
  }
  roster_->nodes.push_back(added.server);
  left_.push_back(false);
  actions.emplace_back(NodeAdded{});
  return Status::ok();
}

void Membership::finish(const std::string& text, TimeUs now, MembershipActions& actions) {
  if (!started()) {
    return try_again(deadline_exceeded("it still serves a job that this process has left"), actions);
  }
  finished_ = true;
  const bool is_worker = roster_->nodes[roster_->self].role == Role::kWorker;
  if (is_worker && !leaving_) finish_deadline_us_ = now + timeout_us_;
  actions.emplace_back(JobFinished{text});
}

void Membership::try_again(Status why, MembershipActions& actions) {
  connected_ = false;
  actions.emplace_back(TryAgain{std::move(why)});
}

void Membership::on_scheduler_closed(const Status& why, TimeUs now, MembershipActions& actions) {
  if (ended()) return;
  if (resume_deadline_us_ != kNever) return fail_to_resume(why, actions);
  if (!connected_) return fail(why.with_context("cannot join the job: " + name_scheduler()), actions);
  // Each Join is answered, unless it arrives while the scheduler of an earlier job is closing.
  if (!answered_) {
    return try_again(unavailable("it closed the connection without an answer: " + why.message()), actions);
  }
  lose_scheduler(unavailable("lost the connection to the " + name_scheduler() + ": " + why.message()), now,
                 actions);
}

void Membership::lose_scheduler(const Status& why, TimeUs now, MembershipActions& actions) {
  if (standby_.empty()) return fail(why, actions);
  connected_ = false;
  resume_deadline_us_ = now + timeout_us_;
  scheduler_loss_ = why;
  actions.emplace_back(FollowStandby{std::exchange(standby_, ""), why});
}

void Membership::fail_to_resume(const Status& why, MembershipActions& actions) {
  fail(unavailable(scheduler_loss_.message() + "; and no connection to its standby in " +
                   roster_->nodes[0].describe() + ": " + why.message()),
       actions);
}

// The standby may need a timeout for a verdict.
void Membership::on_resumed(TimeUs now) {
  if (ended()) return;
  connected_ = answered_ = true;
  hosted_by_rank_0_ = true;
  scheduler_ = "scheduler that was the standby";
  resume_deadline_us_ = kNever;
  last_heard_us_ = now;
  next_heartbeat_us_ = now + timeout_us_ / kHeartbeatsPerTimeout;
  for (auto& [node, suspicion] : suspects_) suspicion.deadline_us = now + timeout_us_ + timeout_us_ / 2;
}

void Membership::on_suspect(uint32_t node, const Status& why, TimeUs now, MembershipActions& actions) {
  if (ended() || has_left(node)) return;
  BPS_CHECK(started() && node < left_.size()) << "node " << node;
  const bool is_new = suspects_.try_emplace(node, Suspicion{why, now + timeout_us_ + timeout_us_ / 2}).second;
  if (is_new) actions.emplace_back(SendControl{Suspect{node, why.message()}});
}

void Membership::leave(const std::string& cause, MembershipActions& actions) {
  if (ended() || leaving_) return;
  leaving_ = true;
  if (connected_ || resume_deadline_us_ != kNever) actions.emplace_back(SendControl{Leave{cause}});
}

void Membership::give_up(const Status& why, MembershipActions& actions) {
  if (ended()) return;
  fail(started() ? why.with_context(roster_->nodes[roster_->self].describe()) : why, actions);
}

void Membership::on_tick(TimeUs now, MembershipActions& actions) {
  if (failure_.is_ok() && now >= finish_deadline_us_) {
    return fail(unavailable("the " + name_scheduler() + " has left the job" + name_suspect()), actions);
  }
  if (ended()) return;
  if (!started() && now >= start_deadline_us_) {
    return fail(deadline_exceeded("the job has not started: " +
                                  (connected_ ? "the " + name_scheduler() + " still waits for other nodes"
                                              : "no connection to the " + name_scheduler())),
                actions);
  }
  if (now >= resume_deadline_us_)
    return fail_to_resume(deadline_exceeded("no answer for " + seconds(timeout_us_)), actions);
  if (!connected_) {
    if (!started() && notices_ && notices_->due(now)) {
      actions.emplace_back(LogStillWaiting{"the job has not started after " +
                                           seconds(notices_->waited_us(now)) + ": no connection to the " +
                                           name_scheduler() + " yet"});
    }
    return;
  }
  if (now - last_heard_us_ >= timeout_us_) {
    const std::string silent = " has been silent for " + seconds(now - last_heard_us_);
    return lose_scheduler(unavailable("the " + name_scheduler() + silent), now, actions);
  }
  for (const auto& [node, suspicion] : suspects_) {
    if (now < suspicion.deadline_us) continue;
    const std::string what = node == roster_->self ? "" : "lost the connection to ";
    return fail(unavailable(what + roster_->nodes[node].describe() + ": " + suspicion.why.message()),
                actions);
  }
  if (now >= next_heartbeat_us_) {
    next_heartbeat_us_ = now + timeout_us_ / kHeartbeatsPerTimeout;
    actions.emplace_back(SendControl{Heartbeat{}});
  }
}

TimeUs Membership::next_tick_us() const {
  if (!failure_.is_ok()) return kNever;
  if (finished_) return finish_deadline_us_;
  TimeUs next = started() ? resume_deadline_us_ : start_deadline_us_;
  if (!connected_ && notices_ && !started()) next = std::min(next, notices_->next_us());
  if (!connected_) return next;
  next = std::min({next, next_heartbeat_us_, last_heard_us_ + timeout_us_});
  for (const auto& [node, suspicion] : suspects_) next = std::min(next, suspicion.deadline_us);
  return next;
}

bool Membership::has_left(uint32_t node) const { return node < left_.size() && left_[node]; }

void Membership::fail(Status why, MembershipActions& actions) {
  failure_ = why;
  suspects_.clear();
  actions.emplace_back(JobFailed{std::move(why)});
}

std::string Membership::name_suspect() const {
  if (suspects_.empty()) return "";
  const auto& [node, suspicion] = *suspects_.begin();
  return ", and the connection to " + roster_->nodes[node].describe() +
         " is lost: " + suspicion.why.message();
}

std::string Membership::name_scheduler() const {
  if (!hosted_by_rank_0_) return scheduler_;
  return scheduler_ + ", which is part of " + (roster_ ? roster_->nodes[0].describe() : "rank 0");
}

}  // namespace byteps::protocol
