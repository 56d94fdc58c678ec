// A node's connection to the scheduler: joins, keeps the heartbeat, passes on what the scheduler says.
//
// What is decided is protocol/membership's; this carries it out on one event loop.
#pragma once

#include <memory>
#include <vector>

#include "base/event_flag.h"
#include "cluster/control_channel.h"
#include "protocol/membership.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// On the client's loop.
class ClientEvents {
 public:
  virtual ~ClientEvents() = default;
  // Before the job starts, if at all: this node takes part in measuring network cards (protocol/nic_survey).
  virtual void on_probe_setup(const protocol::ProbeSetup& setup) = 0;
  virtual void on_probe_start(const protocol::ProbeStart& start) = 0;
  virtual void on_started(const protocol::Roster& roster) = 0;
  // Final; once.
  virtual void on_failed(const Status& why) = 0;
  virtual void on_node_left(uint32_t node) = 0;
  // All workers have left, or the scheduler's process has.
  virtual void on_finished(const std::string& text) = 0;
  // Asked with each heartbeat: why this node is of no use to the others though it is there, if it is not.
  virtual Status self_check() { return Status::ok(); }
  // This node still waits for others, of whom the text says which.
  virtual void on_still_waiting(const std::string& text) = 0;
  // Placed, Refused, BarrierDone. An error closes the connection to the scheduler.
  virtual Status on_answer(const protocol::Control& message) = 0;
};

struct ClientOptions {
  std::string scheduler_host;                           // name or address, for messages
  std::vector<transport::Address> scheduler_addresses;  // what that stands for; their ports do not count
  std::vector<int> scheduler_ports;  // looked at in this order, again and again until the deadline
  bool hosted_by_rank_0 = false;
  TimeUs start_deadline_us = 0;  // of the connection; the scheduler's report may come a little later
  TimeUs timeout_us = 0;
};

class Client final : public ControlEvents {
 public:
  Client(transport::EventLoop& loop, transport::Transport& tcp, ClientOptions options, ClientEvents& events);
  ~Client() override;

  // Any thread. Connects and joins; on_started or on_failed follows.
  void join(protocol::Join join);
  // Any thread; messages sent before the connection stands or after it has ended are dropped (on_failed told).
  void send(protocol::Control message);
  // Any thread. This node's connection to `node` broke.
  void suspect(uint32_t node, Status why);
  TimeUs now_us() const { return loop_.now_us(); }  // any thread
  // Any thread. This process ends by `cause`: the scheduler fails the job, and on_failed follows; leave() remains to
  // be called.
  void fail_job(std::string cause);
  // The loop's thread, which is of no use any more: the job has failed for this node, and the scheduler notices.
  void give_up(const Status& why);
  // Any thread. Leaves in order, and calls `done` on the loop when the scheduler has taken that, at `deadline_us`, or when
  // the job has failed.
  void leave(TimeUs deadline_us, UniqueFunction<void()> done);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  void try_connect(size_t attempt);
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection, size_t attempt);
  void connect_again(const Status& why);
  void fail_to_connect(const Status& why);
  void check_self();
  void hang_up();
  void finish_leaving();
  void apply(const protocol::MembershipActions& actions);

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const ClientOptions options_;
  ClientEvents& events_;
  protocol::Membership membership_;
  transport::LazyTimer timer_;
  std::vector<transport::Address> candidates_;
  Status refusal_;           // not ok: somebody answered there, but not for this job
  size_t last_refused_ = 0;  // attempt
  TimeUs first_refusal_us_ = 0;
  protocol::Join join_;
  std::unique_ptr<ControlChannel> channel_;
  bool leaving_ = false;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::cluster
