// The scheduler role, as cluster/scheduler is.
#pragma once

#include <map>
#include <string>

#include "protocol/scheduler_state.h"
#include "sim/world.h"

namespace byteps::sim {

class SimScheduler final : public Receiver {
 public:
  // Listens at once. `on_ended` (may be empty): the job has ended and no connection is left.
  SimScheduler(World& world, VirtualProcess& process, UniqueFunction<void()> on_ended);

  // `on_ended`: everybody was told and no connection is left.
  void shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> on_ended);
  const Status& outcome() const { return state_.failure(); }

  void on_head(Endpoint&, const Frame&) override {}
  void on_frame(Endpoint& endpoint, const Frame& frame) override;
  void on_closed(Endpoint& endpoint, const Status& why) override;

  static constexpr const char* kAddress = "scheduler";

 private:
  void accept(Endpoint& endpoint);
  void apply(const protocol::SchedulerActions& actions);
  void note(const protocol::SendTo& send, const Endpoint& endpoint);
  void schedule_tick();
  void check_ended();

  World& world_;
  VirtualProcess& process_;
  UniqueFunction<void()> on_ended_;
  protocol::SchedulerState state_;
  std::map<protocol::PeerId, Endpoint*> peers_;
  std::map<const Endpoint*, protocol::PeerId> ids_;  // looked up, never iterated
  protocol::PeerId next_peer_ = 1;
  TimeUs tick_us_ = kNever;
  bool shut_down_ = false;
  bool is_patient_ = true;  // with peers that do not close, until the job has ended
};

}  // namespace byteps::sim
