// The coordinator of an elastic job: applies the decisions of protocol/coordinator_state on one event
// loop. It runs in the launcher's process, or in one of its own.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/milestone.h"
#include "cluster/control_channel.h"
#include "protocol/coordinator_state.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// Destroyed on a thread other than the loop's. Everything else happens on the loop.
class Coordinator final : public ControlEvents {
 public:
  Coordinator(transport::EventLoop& loop, protocol::CoordinatorOptions options);
  ~Coordinator() override;

  // Not on the loop. Listens on `address`; kUnavailable: it is in use.
  Status listen(transport::Transport& tcp, const transport::Address& address);
  // Listens on a socket that somebody else has opened, and owns it from now on.
  Status listen(transport::Transport& tcp, int socket_fd);
  const transport::Address& address() const { return listener_->address(); }

  // Any thread. Reached when the job has ended and its members have been told.
  Milestone& ended() { return ended_; }
  // ok: all members have left in order. Valid from ended() on.
  const Status& outcome() const { return state_.failure(); }
  // Any thread. The launcher ends the job; ended() follows.
  void shutdown(const std::string& text);

  struct Counts {
    uint32_t epoch = 0;
    uint32_t active = 0;   // members that take part
    uint32_t waiting = 0;  // members that will
  };
  Counts counts();  // any thread but the loop's

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  template <typename Listen>
  Status open(Listen&& listen);
  void accept(std::unique_ptr<transport::Connection> connection);
  void apply(const protocol::CoordinatorState::Actions& actions);
  void check_ended();
  void end();

  transport::EventLoop& loop_;
  protocol::CoordinatorState state_;
  transport::LazyTimer timer_;
  std::unique_ptr<transport::Listener> listener_;
  std::unordered_map<protocol::PeerId, std::unique_ptr<ControlChannel>> peers_;
  std::unordered_map<const ControlChannel*, protocol::PeerId> ids_;
  protocol::PeerId last_peer_ = 0;
  transport::EventLoop::TimerId grace_timer_ = 0;  // runs from the end of the job
  Milestone ended_;
};

}  // namespace byteps::cluster
