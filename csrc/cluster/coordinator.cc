#include "cluster/coordinator.h"

#include <utility>

#include "base/log.h"

namespace byteps::cluster {

using protocol::ClosePeer;
using protocol::PeerId;
using protocol::SendTo;

namespace {

// Time for a member to read its last message.
constexpr TimeUs kLastMessageUs = 1'000'000;

}  // namespace

Coordinator::Coordinator(transport::EventLoop& loop, protocol::CoordinatorOptions options)
    : loop_(loop),
      state_(std::move(options), loop.now_us()),
      timer_(
          loop, [this] { return state_.next_tick_us(); },
          [this] {
            protocol::CoordinatorState::Actions actions;
            state_.on_tick(loop_.now_us(), actions);
            apply(actions);
          }) {}

Coordinator::~Coordinator() {
  loop_.run_and_wait([this] {
    timer_.stop();
    if (grace_timer_ != 0) loop_.cancel(grace_timer_);
    listener_.reset();
    peers_.clear();
  });
}

template <typename Listen>
Status Coordinator::open(Listen&& listen) {
  Status status;
  loop_.run_and_wait([&] {
    auto listener = listen([this](auto connection) { accept(std::move(connection)); });
    status = listener.status();
    if (!listener) return;
    listener_ = std::move(*listener);
    timer_.update();
  });
  return status;
}

Status Coordinator::listen(transport::Transport& tcp, const transport::Address& address) {
  const Status status =
      open([&](auto on_accept) { return tcp.listen(loop_, address, std::move(on_accept)); });
  return status.with_context("the coordinator cannot listen on " + address.to_string());
}

Status Coordinator::listen(transport::Transport& tcp, int socket_fd) {
  const Status status =
      open([&](auto on_accept) { return tcp.listen_on(loop_, UniqueFd(socket_fd), std::move(on_accept)); });
  return status.with_context("the coordinator cannot listen on the socket handed over by the launcher");
}

void Coordinator::accept(std::unique_ptr<transport::Connection> connection) {
  const PeerId id = ++last_peer_;
  auto channel = std::make_unique<ControlChannel>(std::move(connection), *this);
  ids_[channel.get()] = id;
  ControlChannel& started = *channel;
  peers_[id] = std::move(channel);
  started.start();
}

Status Coordinator::on_control(ControlChannel& channel, const protocol::Control& message) {
  protocol::CoordinatorState::Actions actions;
  state_.on_message(ids_.at(&channel), message, loop_.now_us(), actions);
  apply(actions);
  return Status::ok();
}

void Coordinator::on_channel_closed(ControlChannel& channel, const Status& why) {
  const PeerId id = ids_.at(&channel);
  if (why.code() == StatusCode::kDataLoss) {
    BPS_LOG(kWarning) << "coordinator: " << channel.peer()
                      << " knows the job's secret but sent an invalid message: " << why.message();
  }
  ids_.erase(&channel);
  const auto found = peers_.find(id);
  // Destroyed later, because the channel is the caller.
  loop_.post([doomed = std::move(found->second)] {});
  peers_.erase(found);
  protocol::CoordinatorState::Actions actions;
  state_.on_closed(id, why, loop_.now_us(), actions);
  apply(actions);
}

void Coordinator::apply(const protocol::CoordinatorState::Actions& actions) {
  for (const protocol::SchedulerAction& action : actions) {
    if (const auto* send = std::get_if<SendTo>(&action)) {
      const auto peer = peers_.find(send->peer);
      if (peer != peers_.end()) peer->second->send(send->message);
    } else if (const auto* close = std::get_if<ClosePeer>(&action)) {
      const auto peer = peers_.find(close->peer);
      if (peer != peers_.end()) peer->second->close_when_sent(loop_.now_us() + kLastMessageUs);
    }
  }
  timer_.update();
  check_ended();
}

void Coordinator::check_ended() {
  if (!state_.has_ended() || ended_.is_reached()) return;
  if (peers_.empty()) return end();
  if (grace_timer_ == 0) grace_timer_ = loop_.run_at(loop_.now_us() + kLastMessageUs, [this] { end(); });
}

void Coordinator::end() {
  if (!ended_.is_reached()) ended_.reach();
}

void Coordinator::shutdown(const std::string& text) {
  loop_.post([this, text] {
    protocol::CoordinatorState::Actions actions;
    state_.on_shutdown(text, actions);
    apply(actions);
  });
}

Coordinator::Counts Coordinator::counts() {
  Counts counts;
  loop_.run_and_wait([&] { counts = {state_.epoch(), state_.num_active(), state_.num_waiting()}; });
  return counts;
}

}  // namespace byteps::cluster
