// The connection of a member of an elastic job to the coordinator: enrols, sends heartbeats, and
// delivers what the coordinator says (protocol/coordinator_state.h).
#pragma once

#include <memory>
#include <vector>

#include "cluster/control_channel.h"
#include "protocol/message.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// Called on the loop of the link.
class CoordinatorEvents {
 public:
  virtual ~CoordinatorEvents() = default;
  // Enrolled, Form, Entered, Cancelled, Resigned or Missing. An error closes the connection.
  virtual Status on_coordinator(const protocol::Control& message) = 0;
  // The coordinator has ended the job for this member. Nothing follows.
  virtual void on_verdict(const Status& why) = 0;
  // There is no coordinator any more: nobody comes, and nobody may be lost. Nothing follows.
  virtual void on_coordinator_lost(const Status& why) = 0;
};

// All methods but the constructor and the destructor: on the loop.
class CoordinatorLink final : public ControlEvents {
 public:
  // `tcp` must outlive this.
  CoordinatorLink(transport::EventLoop& loop, transport::Transport& tcp, CoordinatorEvents& events);
  ~CoordinatorLink() override;

  // Tries these addresses in turn until the deadline.
  void enrol(std::vector<transport::Address> coordinator, protocol::Enrol enrol, TimeUs deadline_us);
  void send(const protocol::Control& message);
  // This member leaves: closes the connection when everything is sent, at the latest at the deadline.
  void close(TimeUs deadline_us);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  void try_connect(size_t attempt);
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection, size_t attempt);
  TimeUs next_tick_us() const;
  void tick();
  void lose(const Status& why);

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  CoordinatorEvents& events_;
  std::vector<transport::Address> addresses_;
  protocol::Enrol enrol_;
  TimeUs deadline_us_ = 0;
  std::unique_ptr<ControlChannel> channel_;
  TimeUs timeout_us_ = 0;  // 0: not enrolled yet
  TimeUs last_heard_us_ = 0;
  TimeUs next_heartbeat_us_ = kNever;
  bool is_over_ = false;
  transport::LazyTimer timer_;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace byteps::cluster
