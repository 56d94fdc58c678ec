#include "cluster/coordinator_link.h"

#include <algorithm>
#include <utility>

namespace byteps::cluster {
namespace {

constexpr TimeUs kTryOneUs = 1'000'000;
constexpr TimeUs kTryPauseUs = 50'000;
constexpr TimeUs kMemberHeartbeats = 6;

}  // namespace

CoordinatorLink::CoordinatorLink(transport::EventLoop& loop, transport::Transport& tcp,
                                 CoordinatorEvents& events)
    : loop_(loop),
      tcp_(tcp),
      events_(events),
      timer_(loop, [this] { return next_tick_us(); }, [this] { tick(); }) {}

CoordinatorLink::~CoordinatorLink() {
  loop_.run_and_wait([this] {
    timer_.stop();
    channel_.reset();
  });
}

void CoordinatorLink::enrol(std::vector<transport::Address> coordinator, protocol::Enrol enrol,
                            TimeUs deadline_us) {
  addresses_ = std::move(coordinator);
  enrol_ = std::move(enrol);
  deadline_us_ = deadline_us;
  try_connect(0);
}

void CoordinatorLink::try_connect(size_t attempt) {
  const TimeUs until_us =
      addresses_.size() == 1 ? deadline_us_ : std::min(deadline_us_, loop_.now_us() + kTryOneUs);
  tcp_.connect(loop_, addresses_[attempt % addresses_.size()], until_us,
               [this, attempt, alive = std::weak_ptr(alive_)](auto connection) {
                 if (!alive.expired()) on_connected(std::move(connection), attempt);
               });
}

void CoordinatorLink::on_connected(Result<std::unique_ptr<transport::Connection>> connection,
                                   size_t attempt) {
  if (is_over_) return;
  if (!connection) {
    const bool is_refused = connection.status().code() == StatusCode::kPermissionDenied;
    if (is_refused || loop_.now_us() >= deadline_us_ || addresses_.size() == 1)
      return lose(connection.status().with_context("coordinator"));
    loop_.run_at(loop_.now_us() + kTryPauseUs, [this, attempt, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && !is_over_) try_connect(attempt + 1);
    });
    return;
  }
  channel_ = std::make_unique<ControlChannel>(std::move(*connection), *this);
  channel_->start();
  channel_->send(enrol_);
}

void CoordinatorLink::send(const protocol::Control& message) {
  if (channel_) channel_->send(message);
}

void CoordinatorLink::close(TimeUs deadline_us) {
  is_over_ = true;
  timer_.stop();
  if (channel_) channel_->close_when_sent(deadline_us);
}

Status CoordinatorLink::on_control(ControlChannel&, const protocol::Control& message) {
  last_heard_us_ = loop_.now_us();
  if (is_over_ || std::holds_alternative<protocol::Heartbeat>(message)) return Status::ok();
  if (const auto* lost = std::get_if<protocol::Lost>(&message)) {
    is_over_ = true;
    timer_.stop();
    events_.on_verdict(Status(lost->code, lost->text));
    return Status::ok();
  }
  if (const auto* enrolled = std::get_if<protocol::Enrolled>(&message)) {
    timeout_us_ = static_cast<TimeUs>(enrolled->timeout_us);
    next_heartbeat_us_ = last_heard_us_ + timeout_us_ / kMemberHeartbeats;
    timer_.update();
  } else if (!protocol::is_one_of<protocol::Form, protocol::Entered, protocol::Cancelled, protocol::Resigned,
                                  protocol::Missing>(message)) {
    return data_loss("a coordinator does not send this message");
  }
  return events_.on_coordinator(message);
}

void CoordinatorLink::on_channel_closed(ControlChannel& channel, const Status& why) {
  const std::string peer = channel.peer();
  loop_.post([doomed = std::move(channel_)] {});  // the channel is the caller
  if (!is_over_) lose(unavailable("the coordinator (" + peer + ") is lost: " + why.message()));
}

TimeUs CoordinatorLink::next_tick_us() const {
  if (is_over_ || timeout_us_ == 0) return kNever;
  return std::min(next_heartbeat_us_, last_heard_us_ + timeout_us_);
}

void CoordinatorLink::tick() {
  const TimeUs now = loop_.now_us();
  // If this process stood still, what the coordinator has said meanwhile has not been read yet.
  const bool was_stopped = now - next_tick_us() > timeout_us_ / 4;
  if (was_stopped) last_heard_us_ = std::max(last_heard_us_, now - timeout_us_ / 2);
  if (now >= last_heard_us_ + timeout_us_ && channel_) {
    const std::string peer = channel_->peer();
    channel_->close();
    channel_.reset();
    return lose(unavailable("the coordinator (" + peer + ") has been silent"));
  }
  if (now < next_heartbeat_us_) return;
  next_heartbeat_us_ = now + timeout_us_ / kMemberHeartbeats;
  send(protocol::Heartbeat{});
}

void CoordinatorLink::lose(const Status& why) {
  if (std::exchange(is_over_, true)) return;
  timer_.stop();
  events_.on_coordinator_lost(why);
}

}  // namespace byteps::cluster
