#include "sim/sim_scheduler.h"

#include <utility>

#include "sim/sim_channel.h"

namespace byteps::sim {
namespace {

constexpr TimeUs kFlushUs = 100'000;

protocol::SchedulerOptions options_of(const Scenario& scenario) {
  return {.num_workers = scenario.sizes_are_given ? scenario.num_workers : 0,
          .num_servers = scenario.sizes_are_given ? scenario.num_servers : 0,
          .start_timeout_us = scenario.start_timeout_us,
          .timeout_us = scenario.timeout_us,
          .op_timeout_us = scenario.op_timeout_us,
          .partition_bytes = scenario.partition_bytes,
          .placement = scenario.placement,
          .probe_nics = scenario.probes_nics};
}

}  // namespace

using protocol::ClosePeer;
using protocol::SchedulerActions;
using protocol::SendTo;

SimScheduler::SimScheduler(World& world, VirtualProcess& process, UniqueFunction<void()> on_ended)
    : world_(world),
      process_(process),
      on_ended_(std::move(on_ended)),
      state_(options_of(world.scenario), world.clock.now()) {
  world_.network.listen(process_, kAddress, [this](Endpoint& endpoint) { accept(endpoint); });
  schedule_tick();
}

void SimScheduler::accept(Endpoint& endpoint) {
  const protocol::PeerId id = next_peer_++;
  ids_[&endpoint] = id;
  peers_[id] = &endpoint;
  endpoint.start(this);
}

void SimScheduler::on_frame(Endpoint& endpoint, const Frame& frame) {
  const Result<protocol::Control> message = read_control(frame);
  if (!message) return world_.report(process_, message.status().to_string());
  SchedulerActions actions;
  state_.on_message(ids_.at(&endpoint), *message, world_.clock.now(), actions);
  apply(actions);
}

void SimScheduler::on_closed(Endpoint& endpoint, const Status& why) {
  const protocol::PeerId id = ids_.at(&endpoint);
  ids_.erase(&endpoint);
  peers_.erase(id);
  SchedulerActions actions;
  state_.on_closed(id, why, world_.clock.now(), actions);
  apply(actions);
}

void SimScheduler::apply(const SchedulerActions& actions) {
  for (const protocol::SchedulerAction& action : actions) {
    if (const auto* send = std::get_if<SendTo>(&action)) {
      if (const auto peer = peers_.find(send->peer); peer != peers_.end()) {
        note(*send, *peer->second);
        send_control(world_, *peer->second, send->message);
      }
    } else if (const auto* close = std::get_if<ClosePeer>(&action)) {
      const auto peer = peers_.find(close->peer);
      if (peer != peers_.end()) peer->second->close_when_sent(world_.clock.now() + kFlushUs);
    }
  }
  schedule_tick();
  check_ended();
}

void SimScheduler::note(const SendTo& send, const Endpoint& endpoint) {
  if (std::holds_alternative<protocol::Heartbeat>(send.message)) return;
  world_.note(process_, 100 + send.message.index(), [&] {
    return "sends " + endpoint.peer().name() + " control message type " +
           std::to_string(send.message.index() + 1);
  });
}

void SimScheduler::schedule_tick() {
  const TimeUs next_us = state_.next_tick_us();
  if (next_us >= tick_us_) return;
  tick_us_ = next_us;
  process_.at(next_us, [this, next_us] {
    if (tick_us_ != next_us) return;  // an earlier one has replaced this one
    tick_us_ = kNever;
    SchedulerActions actions;
    if (state_.next_tick_us() <= world_.clock.now()) state_.on_tick(world_.clock.now(), actions);
    apply(actions);
  });
}

void SimScheduler::check_ended() {
  using Phase = protocol::SchedulerState::Phase;
  const bool over = state_.phase() == Phase::kFinished || state_.phase() == Phase::kFailed || shut_down_;
  if (over && peers_.empty() && on_ended_) std::exchange(on_ended_, nullptr)();
  if (!over || std::exchange(is_patient_, false) == false) return;
  process_.at(world_.clock.now() + kFlushUs, [this] {  // some peers may be stopped
    if (on_ended_) std::exchange(on_ended_, nullptr)();
  });
}

void SimScheduler::shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> on_ended) {
  on_ended_ = std::move(on_ended);
  SchedulerActions actions;
  state_.on_shutdown(text, actions);
  shut_down_ = true;
  apply(actions);
  for (const auto& [id, endpoint] : peers_) endpoint->close_when_sent(deadline_us);
  check_ended();
}

}  // namespace byteps::sim
