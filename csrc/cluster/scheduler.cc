#include "cluster/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace byteps::cluster {

using protocol::ClosePeer;
using protocol::PeerId;
using protocol::SchedulerActions;
using protocol::SendTo;

namespace {

using EventKind = protocol::SchedulerEvent::Kind;

constexpr PeerId kFirstPeer = 1;
// Above those of the scheduler before.
constexpr PeerId kFirstPeerOfSuccessor = PeerId{1} << 32;

// Time for a peer to read its last message; a peer that has not read it by then (it may be stopped)
// is closed.
constexpr TimeUs kFlushUs = 1'000'000;

// Between two tries of a service whose node has not connected again yet.
constexpr TimeUs kCheckPauseUs = 1'000'000;

}  // namespace

Scheduler::Scheduler(transport::EventLoop& loop, transport::Transport& tcp,
                     protocol::SchedulerOptions options, bool is_alone)
    : loop_(loop),
      tcp_(tcp),
      is_alone_(is_alone),
      state_(options, loop_.now_us()),
      timer_(
          loop, [this] { return next_tick_us(); }, [this] { tick(); }),
      next_peer_(kFirstPeer) {
  if (options.has_standby) replication_.emplace(protocol::SchedulerOrigin{options, loop_.now_us()});
}

Scheduler::Scheduler(transport::EventLoop& loop, transport::Transport& tcp,
                     protocol::SchedulerReplica replica)
    : loop_(loop),
      tcp_(tcp),
      is_alone_(false),
      clock_offset_us_(replica.clock_offset_us()),
      state_(std::move(replica.state())),
      sessions_(std::move(replica.sessions())),
      timer_(
          loop, [this] { return next_tick_us(); }, [this] { tick(); }),
      next_peer_(kFirstPeerOfSuccessor) {
  state_.take_over(now_us());
  timer_.update();
}

TimeUs Scheduler::next_tick_us() const {
  const TimeUs next_us = state_.next_tick_us();
  return next_us == kNever ? kNever : next_us - clock_offset_us_;
}

void Scheduler::tick() { handle({.kind = EventKind::kTick, .now_us = now_us()}); }

// What the standby does not have yet must not be known to anybody.
void Scheduler::handle(const protocol::SchedulerEvent& event) {
  using Phase = protocol::SchedulerState::Phase;
  SchedulerActions actions;
  protocol::apply(event, state_, actions);
  if (!replication_) return apply(actions);
  SchedulerActions released;
  if (state_.has_standby() && !replication_->has_begun()) replication_->begin(event.peer, released);
  replication_->on_event(event, std::move(actions), released);
  const bool is_over = state_.phase() > Phase::kRunning;
  if (is_over || (replication_->has_begun() && !state_.has_standby())) replication_->end(released);
  apply(released);
}

Scheduler::~Scheduler() {
  loop_.run_and_wait([this] {
    timer_.stop();
    if (grace_timer_ != 0) loop_.cancel(grace_timer_);
    listener_.reset();
    peers_.clear();
  });
}

template <typename Listen>
Status Scheduler::open(Listen&& listen) {
  Status status;
  loop_.run_and_wait([&] {
    auto listener = listen([this](auto connection) { accept(std::move(connection)); });
    status = listener.status();
    if (!listener) return;
    listener_ = std::move(*listener);
    listener_->tell_refused([this](const transport::Address& caller, const Status& why) {
      state_.on_refused(caller.ip, why, now_us());
      timer_.update();
    });
    timer_.update();
  });
  return status;
}

Status Scheduler::listen(transport::Transport& tcp, const std::string& ip, const std::vector<int>& ports) {
  Status failure;
  std::string tried;
  for (const int port : ports) {
    const transport::Address address{ip, static_cast<uint16_t>(port)};
    const Status status =
        open([&](auto on_accept) { return tcp.listen(loop_, address, std::move(on_accept)); });
    if (status.is_ok()) return status;
    tried += (tried.empty() ? "" : ", ") + address.to_string();
    failure = status;
  }
  return failure.with_context("scheduler cannot listen on " + tried);
}

Status Scheduler::listen(transport::Transport& tcp, int socket_fd) {
  const Status status =
      open([&](auto on_accept) { return tcp.listen_on(loop_, UniqueFd(socket_fd), std::move(on_accept)); });
  return status.with_context("scheduler cannot listen on the socket handed over by the launcher");
}

void Scheduler::accept(std::unique_ptr<transport::Connection> connection) {
  const PeerId id = next_peer_++;
  auto channel = std::make_unique<ControlChannel>(std::move(connection), *this);
  ids_[channel.get()] = id;
  ControlChannel& started = *channel;
  peers_[id] = std::move(channel);
  started.start();
}

Status Scheduler::on_control(ControlChannel& channel, const protocol::Control& message) {
  // Until all peers have been told, connections are accepted that the network has reset.
  if (shut_down_ && std::holds_alternative<protocol::Join>(message))
    return unavailable("the scheduler's process is leaving");
  const PeerId peer = ids_.at(&channel);
  if (const auto* join = std::get_if<protocol::Join>(&message)) {
    BPS_LOG(kInfo) << join->self.describe() << " at " << channel.peer() << " asks to join";
  } else if (const auto* rejoin = std::get_if<protocol::Rejoin>(&message)) {
    return on_rejoin(channel, *rejoin);
  } else if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message)) {
    handle({.kind = EventKind::kHeartbeat, .peer = peer, .now_us = now_us(), .count = heartbeat->received});
    return Status::ok();
  } else if (const auto* replicated = std::get_if<protocol::Replicated>(&message)) {
    if (!replication_) return data_loss("Replicated: this scheduler has no standby");
    SchedulerActions released;
    BPS_RETURN_IF_ERROR(replication_->on_replicated(peer, *replicated, released));
    apply(released);
    return Status::ok();
  }
  handle({.kind = EventKind::kMessage, .peer = peer, .now_us = now_us(), .message = message});
  return Status::ok();
}

Status Scheduler::on_rejoin(ControlChannel& channel, const protocol::Rejoin& rejoin) {
  const auto peer = state_.peer_of(rejoin.node);
  const auto found = peer ? sessions_.find(*peer) : sessions_.end();
  const bool is_expected = found != sessions_.end() && rejoin.epoch == state_.epoch_of_job();
  if (!is_expected || !found->second.sent.confirm(rejoin.received)) {
    return data_loss("Rejoin of node " + std::to_string(rejoin.node) +
                     ": it is of another job, is lost, or was here before");
  }
  const PeerId stranger = std::exchange(ids_.at(&channel), *peer);
  peers_[*peer] = std::move(peers_.at(stranger));
  peers_.erase(stranger);
  const protocol::SchedulerReplica::Session session = std::move(found->second);
  sessions_.erase(found);
  channel.send(protocol::Resumed{session.received});
  for (const protocol::Control& message : session.sent.unconfirmed()) channel.send(message);
  return Status::ok();
}

// The kernel resets the connections of a process that is killed before it has read everything, so a
// reset may be a death.
void Scheduler::on_channel_interrupted(ControlChannel& channel) { check_process(ids_.at(&channel)); }

void Scheduler::check_process(PeerId peer) {
  const auto address = transport::parse_address(state_.service_of(peer));
  if (!address) return;  // not a node yet
  const auto limits = transport::ConnectLimits::while_it_lives(loop_.now_us(), state_.timeout_us());
  tcp_.connect(loop_, *address, limits, [this, peer, alive = std::weak_ptr(alive_)](const auto& connection) {
    if (alive.expired() || !is_interrupted(peer)) return;
    if (connection) {
      loop_.run_at(loop_.now_us() + kCheckPauseUs, [this, peer, still_alive = std::weak_ptr(alive_)] {
        if (!still_alive.expired() && is_interrupted(peer)) check_process(peer);
      });
      return;
    }
    ControlChannel& channel = *peers_.at(peer);
    channel.close();
    on_channel_closed(
        channel, unavailable(channel.peer() + ": its process has ended: " + connection.status().message()));
  });
}

bool Scheduler::is_interrupted(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second->is_interrupted();
}

void Scheduler::on_channel_closed(ControlChannel& channel, const Status& why) {
  const PeerId id = ids_.at(&channel);
  if (why.code() == StatusCode::kDataLoss) log_invalid_message(channel, why);
  ids_.erase(&channel);
  const auto found = peers_.find(id);
  // Destroyed later, because the channel is the caller.
  loop_.post([doomed = std::move(found->second)] {});
  peers_.erase(found);
  handle({.kind = EventKind::kClosed, .peer = id, .now_us = now_us(), .why = why});
}

// A node of another version is disconnected and retries: logs one line per address.
void Scheduler::log_invalid_message(const ControlChannel& channel, const Status& why) {
  const std::string host = channel.peer().substr(0, channel.peer().rfind(':'));
  constexpr size_t kMostHosts = 64;
  if (invalid_message_hosts_.size() >= kMostHosts || !invalid_message_hosts_.insert(host).second) return;
  BPS_LOG(kWarning) << "scheduler: " << channel.peer()
                    << " knows the job's secret but sent an invalid message: " << why.message()
                    << ": is another version of byteps installed there?";
}

void Scheduler::apply(const SchedulerActions& actions) {
  for (const protocol::SchedulerAction& action : actions) {
    if (const auto* send = std::get_if<SendTo>(&action)) {
      send_to(send->peer, send->message);
    } else if (const auto* roster = std::get_if<protocol::SendRoster>(&action)) {
      apply(*roster);
    } else if (const auto* close = std::get_if<ClosePeer>(&action)) {
      const auto peer = peers_.find(close->peer);
      if (peer != peers_.end()) peer->second->close_when_sent(loop_.now_us() + kFlushUs);
    } else if (const auto* waiting = std::get_if<protocol::LogWaiting>(&action)) {
      if (is_alone_) BPS_LOG(kWarning) << waiting->text;
    }
  }
  timer_.update();
  check_ended();
}

void Scheduler::send_to(PeerId peer, const protocol::Control& message) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) {
    const bool counts = replication_ && std::holds_alternative<protocol::Heartbeat>(message);
    return found->second->send(counts ? protocol::Control(protocol::Heartbeat{replication_->confirmed(peer)})
                                      : message);
  }
  const auto session = sessions_.find(peer);
  if (session != sessions_.end() && protocol::is_sequenced(message)) session->second.sent.push(message);
}

void Scheduler::apply(const protocol::SendRoster& send) {
  const auto payload = std::make_shared<const std::vector<std::byte>>(protocol::encode(send.roster).payload);
  for (uint32_t node = 0; node < send.peers.size(); ++node) {
    const auto peer = peers_.find(send.peers[node]);
    if (peer != peers_.end()) peer->second->send(protocol::roster_head(node), payload);
  }
}

void Scheduler::check_ended() {
  using Phase = protocol::SchedulerState::Phase;
  const bool over = state_.phase() == Phase::kFinished || state_.phase() == Phase::kFailed || shut_down_;
  if (!over || ended_.is_reached()) return;
  const bool awaits_nodes =
      std::ranges::any_of(state_.present(), [this](PeerId peer) { return sessions_.contains(peer); });
  if (peers_.empty() && !awaits_nodes) return set_ended();
  if (grace_timer_ != 0) return;
  // Nodes that come from a lost scheduler may find out late that it is silent.
  const TimeUs grace_us = awaits_nodes ? std::max(kFlushUs, state_.timeout_us()) : kFlushUs;
  grace_timer_ = loop_.run_at(loop_.now_us() + grace_us, [this] { set_ended(); });
}

void Scheduler::set_ended() {
  if (ended_.is_reached()) return;
  // Not a warning: every node has been told, including the one of this process.
  if (!state_.failure().is_ok()) BPS_LOG(kInfo) << "job failed: " << state_.failure().message();
  ended_.reach();
  finish_shutdown();
}

void Scheduler::shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> done) {
  loop_.post([this, text, deadline_us, done = std::move(done)]() mutable {
    shut_down_ = true;
    shutdown_done_ = std::move(done);
    SchedulerActions actions;
    if (replication_) replication_->end(actions);
    state_.on_shutdown(text, actions);
    apply(actions);
    for (const auto& [id, channel] : peers_) channel->close_when_sent(deadline_us);
    check_ended();
    if (ended_.is_reached()) finish_shutdown();
  });
}

void Scheduler::finish_shutdown() {
  if (shut_down_) listener_.reset();
  if (shutdown_done_) std::exchange(shutdown_done_, nullptr)();
}

void Scheduler::give_up(const Status& why) {
  gave_up_ = why.with_context("the scheduler");
  timer_.stop();
  listener_.reset();
  peers_.clear();
  ids_.clear();
  ended_.reach();
  finish_shutdown();
}

}  // namespace byteps::cluster
