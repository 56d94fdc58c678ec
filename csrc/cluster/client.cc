#include "cluster/client.h"

#include <utility>

#include "base/log.h"

namespace byteps::cluster {
namespace {

// Time to try a candidate that does not answer if there are several, and the pause between two
// passes over all candidates.
constexpr TimeUs kCandidateTimeoutUs = 500'000;
constexpr TimeUs kCandidatePauseUs = 50'000;
// Time during which refusals are retried. The scheduler of an earlier job, with another secret or
// job id, may still run and end soon.
constexpr TimeUs kRefusalRetryUs = 1'000'000;
// The same with several candidates: other jobs may use some of them, and this job's scheduler may
// be late.
constexpr TimeUs kStrangersRetryUs = 20'000'000;
// The scheduler reports the missing nodes at the start deadline; a node waits a little longer for
// that report.
constexpr TimeUs kReportUs = 3'000'000;

std::string describe_scheduler(const ClientOptions& options) {
  std::string text = "scheduler at " + options.scheduler_host;
  if (options.scheduler_ports.size() == 1) text += ":" + std::to_string(options.scheduler_ports.front());
  return text;
}

}  // namespace

using protocol::MembershipActions;

Client::Client(transport::EventLoop& loop, transport::Transport& tcp, ClientOptions options,
               ClientEvents& events)
    : loop_(loop),
      tcp_(tcp),
      options_(std::move(options)),
      events_(events),
      membership_(describe_scheduler(options_), options_.hosted_by_rank_0,
                  options_.start_deadline_us + kReportUs, options_.timeout_us),
      timer_(
          loop, [this] { return membership_.next_tick_us(); },
          [this] { decide([this](auto& actions) { membership_.on_tick(loop_.now_us(), actions); }); }) {}

template <typename F>
void Client::decide(F&& f) {
  MembershipActions actions;
  f(actions);
  apply(actions);
}

Client::~Client() {
  loop_.run_and_wait([this] {
    timer_.stop();
    if (leave_timer_ != 0) loop_.cancel(leave_timer_);
    channel_.reset();
  });
}

void Client::join(protocol::Join join) {
  loop_.post([this, join = std::move(join)]() mutable {
    for (const int port : options_.scheduler_ports) {
      for (const transport::Address& address : options_.scheduler_addresses) {
        candidates_.push_back({address.ip, static_cast<uint16_t>(port)});
      }
    }
    join_ = std::move(join);
    membership_.on_begin(loop_.now_us());
    timer_.update();
    try_connect(0);
  });
}

void Client::try_connect(size_t attempt) {
  const bool alone = candidates_.size() == 1;
  const TimeUs deadline_us = alone
                                 ? options_.start_deadline_us
                                 : std::min(options_.start_deadline_us, loop_.now_us() + kCandidateTimeoutUs);
  tcp_.connect(loop_, candidates_[attempt % candidates_.size()], deadline_us,
               [this, attempt](auto connection) { on_connected(std::move(connection), attempt); });
}

void Client::on_connected(Result<std::unique_ptr<transport::Connection>> connection, size_t attempt) {
  if (leaving_ || !membership_.failure().is_ok()) return;
  if (connection) {
    channel_ = std::make_unique<ControlChannel>(std::move(*connection), *this);
    channel_->start();
    received_ = 0;
    log_ = {};
    return decide([this](auto& actions) { membership_.on_connected(join_, loop_.now_us(), actions); });
  }
  const TimeUs now = loop_.now_us();
  const bool is_last = (attempt + 1) % candidates_.size() == 0;
  if (connection.status().code() == StatusCode::kPermissionDenied) {
    if (refusal_.is_ok()) first_refusal_us_ = now;
    refusal_ = connection.status();
    last_refused_ = attempt;
  } else if (candidates_.size() > 1 && is_last && last_refused_ + candidates_.size() <= attempt) {
    // No candidate has refused this node in a whole pass: the scheduler that did has gone.
    refusal_ = Status::ok();
  }
  const bool is_refused = !refusal_.is_ok();
  const TimeUs grace_us = candidates_.size() == 1 ? kRefusalRetryUs : kStrangersRetryUs;
  // The transport has already retried a single candidate until the deadline.
  const bool goes_on = is_refused ? now < first_refusal_us_ + grace_us : candidates_.size() > 1;
  if (!goes_on || now >= options_.start_deadline_us) {
    return fail_to_connect(is_refused ? refusal_ : connection.status());
  }
  if (!is_last) return try_connect(attempt + 1);
  loop_.run_at(loop_.now_us() + kCandidatePauseUs, [this, attempt] { try_connect(attempt + 1); });
}

// May be called from inside a callback of the channel, which is destroyed after that.
void Client::drop_channel() {
  if (!channel_) return;
  channel_->close();
  loop_.post([doomed = std::move(channel_)] {});
}

void Client::connect_again(const Status& why) {
  first_refusal_us_ = loop_.now_us();  // the peer has just been this job's scheduler
  refusal_ = why;
  last_refused_ = 0;
  drop_channel();
  loop_.run_at(loop_.now_us() + kCandidatePauseUs, [this] { try_connect(0); });
}

void Client::fail_to_connect(const Status& why) {
  decide([&](auto& actions) { membership_.on_scheduler_closed(why, loop_.now_us(), actions); });
}

void Client::send(protocol::Control message) {
  loop_.post([this, message = std::move(message)] { send_now(message); });
}

void Client::send_now(const protocol::Control& message) {
  if (protocol::is_sequenced(message)) {
    log_.push(message);
    if (!may_resume()) log_.confirm_all();
  }
  if (channel_ && !resuming_) channel_->send(message);
}

bool Client::may_resume() const {
  return resuming_ || (has_standby_ && (!membership_.started() || membership_.roster().has_standby));
}

void Client::follow(const protocol::FollowStandby& standby) {
  has_standby_ = false;  // but for this one
  resuming_ = true;
  drop_channel();
  events_.on_scheduler_lost(standby.why);
  const Result<transport::Address> address = transport::parse_address(standby.address);
  if (!address) return fail_to_connect(address.status());
  const TimeUs deadline_us = loop_.now_us() + static_cast<TimeUs>(membership_.roster().timeout_us);
  tcp_.connect(loop_, *address, deadline_us, [this](auto connection) {
    if (!membership_.failure().is_ok() || !resuming_) return;
    if (!connection) return fail_to_connect(connection.status());
    channel_ = std::make_unique<ControlChannel>(std::move(*connection), *this);
    channel_->start();
    const protocol::Roster& roster = membership_.roster();
    channel_->send(protocol::Rejoin{roster.epoch, roster.self, received_});
  });
}

void Client::join_at(const std::string& address) {
  const Result<transport::Address> parsed = transport::parse_address(address);
  if (!parsed) return fail_to_connect(parsed.status());
  candidates_ = {*parsed};
  drop_channel();
  loop_.post([this] { try_connect(0); });
}

Status Client::on_resumed(const protocol::Resumed& resumed) {
  if (!resuming_ || !log_.confirm(resumed.received))
    return data_loss("the standby has got " + std::to_string(resumed.received) + " messages of " +
                     std::to_string(log_.total()));
  resuming_ = false;
  for (const protocol::Control& message : log_.unconfirmed()) channel_->send(message);
  membership_.on_resumed(loop_.now_us());
  timer_.update();
  close_if_confirmed();
  return Status::ok();
}

void Client::suspect(uint32_t node, Status why) {
  loop_.post([this, node, why = std::move(why)] {
    decide([&](auto& actions) { membership_.on_suspect(node, why, loop_.now_us(), actions); });
  });
}

void Client::fail_job(std::string cause) {
  loop_.post([this, cause = std::move(cause)] {
    decide([&](auto& actions) { membership_.leave(cause, actions); });
  });
}

void Client::give_up(const Status& why) {
  decide([&](auto& actions) { membership_.give_up(why, actions); });
  hang_up();
}

void Client::leave(TimeUs deadline_us, UniqueFunction<void()> done) {
  loop_.post([this, deadline_us, done = std::move(done)]() mutable {
    leaving_ = true;
    leave_done_ = std::move(done);
    decide([&](auto& actions) { membership_.leave("", actions); });
    leave_deadline_us_ = deadline_us;
    if (!channel_ && !resuming_) return finish_leaving();
    close_if_confirmed();
    // A standby would take this node for lost if it never got the message.
    leave_timer_ = loop_.run_at(deadline_us, [this] { hang_up(); });
  });
}

void Client::close_if_confirmed() {
  if (leaving_ && channel_ && !resuming_ && log_.unconfirmed().empty())
    channel_->close_when_sent(leave_deadline_us_);
}

void Client::finish_leaving() {
  if (leave_done_) std::exchange(leave_done_, nullptr)();
}

void Client::check_self() {
  const Status status = events_.self_check();
  if (!status.is_ok() && membership_.started()) suspect(membership_.roster().self, status);
}

void Client::hang_up() {
  timer_.stop();
  if (leave_timer_ != 0) loop_.cancel(std::exchange(leave_timer_, 0));
  drop_channel();
  finish_leaving();
}

Status Client::on_control(ControlChannel&, const protocol::Control& message) {
  if (const auto* resumed = std::get_if<protocol::Resumed>(&message)) return on_resumed(*resumed);
  if (protocol::is_sequenced(message)) ++received_;
  MembershipActions actions;
  BPS_RETURN_IF_ERROR(membership_.on_message(message, loop_.now_us(), actions));
  apply(actions);
  if (const auto* standby = std::get_if<protocol::Standby>(&message); standby && standby->address.empty())
    has_standby_ = false;
  if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message)) log_.confirm(heartbeat->received);
  if (!may_resume()) log_.confirm_all();
  close_if_confirmed();
  // Nothing waits for answers any more, or it joins elsewhere.
  if (!membership_.failure().is_ok() || !channel_) return Status::ok();
  if (protocol::is_one_of<protocol::Placed, protocol::Refused, protocol::BarrierDone, protocol::Stalled,
                          protocol::Leaving, protocol::Forgotten, protocol::Speeds, protocol::Lingers,
                          protocol::AllLinger, protocol::Standby, protocol::Replicate>(message)) {
    return events_.on_answer(message);
  }
  if (const auto* setup = std::get_if<protocol::ProbeSetup>(&message)) events_.on_probe_setup(*setup);
  if (const auto* start = std::get_if<protocol::ProbeStart>(&message)) events_.on_probe_start(*start);
  return Status::ok();
}

void Client::on_channel_closed(ControlChannel&, const Status& why) {
  if (leaving_ && log_.unconfirmed().empty()) return hang_up();
  // Destroyed later, because the channel is the caller.
  loop_.post([doomed = std::move(channel_)] {});
  fail_to_connect(why);
  if (leaving_ && !resuming_) hang_up();
}

void Client::apply(const MembershipActions& actions) {
  for (const protocol::MembershipAction& action : actions) {
    if (const auto* send = std::get_if<protocol::SendControl>(&action)) {
      const bool is_heartbeat = std::holds_alternative<protocol::Heartbeat>(send->message);
      send_now(is_heartbeat ? protocol::Control(protocol::Heartbeat{received_}) : send->message);
      if (is_heartbeat) check_self();
    } else if (std::holds_alternative<protocol::JobStarted>(action)) {
      events_.on_started(membership_.roster());
    } else if (const auto* failed = std::get_if<protocol::JobFailed>(&action)) {
      events_.on_failed(failed->status);
    } else if (const auto* left = std::get_if<protocol::NodeLeft>(&action)) {
      events_.on_node_left(left->node);
    } else if (const auto* removed = std::get_if<protocol::NodeRemoved>(&action)) {
      events_.on_node_removed(removed->removed);
    } else if (std::holds_alternative<protocol::NodeAdded>(action)) {
      events_.on_node_added(membership_.roster().nodes.back());
    } else if (const auto* finished = std::get_if<protocol::JobFinished>(&action)) {
      events_.on_finished(finished->text);
    } else if (const auto* waiting = std::get_if<protocol::LogStillWaiting>(&action)) {
      events_.on_still_waiting(waiting->text);
    } else if (const auto* standby = std::get_if<protocol::FollowStandby>(&action)) {
      follow(*standby);
    } else if (const auto* elsewhere = std::get_if<protocol::JoinElsewhere>(&action)) {
      join_at(elsewhere->address);
    } else if (const auto* again = std::get_if<protocol::TryAgain>(&action)) {
      connect_again(again->why);
    }
  }
  timer_.update();
  // A node that leaves does not wait for a scheduler that may be lost.
  if (leaving_ && !membership_.failure().is_ok()) hang_up();
}

}  // namespace byteps::cluster
