// A node's connection to the scheduler: applies the decisions of protocol/membership on one event
// loop, and delivers the scheduler's messages.
#pragma once

#include <memory>
#include <vector>

#include "base/event_flag.h"
#include "cluster/control_channel.h"
#include "protocol/membership.h"
#include "protocol/message_log.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// Called on the thread of the client's loop.
class ClientEvents {
 public:
  virtual ~ClientEvents() = default;
  // Before the job starts: this node takes part in the measurement of network cards
  // (protocol/nic_survey). Not called in every job.
  virtual void on_probe_setup(const protocol::ProbeSetup& setup) = 0;
  virtual void on_probe_start(const protocol::ProbeStart& start) = 0;
  virtual void on_started(const protocol::Roster& roster) = 0;
  // The job has failed for this node. Called at most once.
  virtual void on_failed(const Status& why) = 0;
  virtual void on_node_left(uint32_t node) = 0;
  // The server is lost, and the job goes on.
  virtual void on_node_removed(const protocol::Removed& removed) = 0;
  // A server has come; it has the next node number.
  virtual void on_node_added(const protocol::NodeInfo& server) = 0;
  // All workers have left, or the scheduler's process has left.
  virtual void on_finished(const std::string& text) = 0;
  // Called with each heartbeat. Returns an error if this node runs but cannot serve the other nodes
  // any more; the scheduler is then told.
  virtual Status self_check() { return Status::ok(); }
  // This node still waits for other nodes; `text` names them.
  virtual void on_still_waiting(const std::string& text) = 0;
  // The scheduler is lost, and the client connects to its standby, which may be in this process.
  virtual void on_scheduler_lost(const Status& why) { static_cast<void>(why); }
  // Delivers Placed, Refused, BarrierDone, Stalled, Leaving, Forgotten, Speeds, Lingers, AllLinger,
  // Standby and Replicate. An error closes the connection to the scheduler.
  virtual Status on_answer(const protocol::Control& message) = 0;
};

struct ClientOptions {
  std::string scheduler_host;  // name or address, for messages
  // Addresses of `scheduler_host`; their ports are ignored.
  std::vector<transport::Address> scheduler_addresses;
  // Ports that the scheduler may have; tried in this order, repeatedly until the deadline.
  std::vector<int> scheduler_ports;
  bool hosted_by_rank_0 = false;
  // Deadline for the connection. The report of the scheduler may come a little later.
  TimeUs start_deadline_us = 0;
  TimeUs timeout_us = 0;
};

class Client final : public ControlEvents {
 public:
  Client(transport::EventLoop& loop, transport::Transport& tcp, ClientOptions options, ClientEvents& events);
  ~Client() override;

  // Any thread. Connects and joins; on_started or on_failed follows.
  void join(protocol::Join join);
  // Any thread. Drops messages while there is no connection (on_failed reports its end), unless
  // there is a standby: then it sends them when that has taken over.
  void send(protocol::Control message);
  // Any thread. Reports that this node has lost its connection to `node`.
  void suspect(uint32_t node, Status why);
  TimeUs now_us() const { return loop_.now_us(); }  // any thread
  // Any thread. This process ends because of `cause`: the scheduler fails the job, and on_failed
  // follows. The caller still has to call leave().
  void fail_job(std::string cause);
  // The loop's thread, if it cannot go on: the job fails for this node, and the connection closes,
  // so that the scheduler notices.
  void give_up(const Status& why);
  // Any thread. Leaves in order. Calls `done` on the loop when the scheduler has received that, at
  // `deadline_us`, or when the job has failed.
  void leave(TimeUs deadline_us, UniqueFunction<void()> done);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  void send_now(const protocol::Control& message);
  // Whether messages are sent again to a standby.
  bool may_resume() const;
  void follow(const protocol::FollowStandby& standby);
  void join_at(const std::string& address);
  Status on_resumed(const protocol::Resumed& resumed);
  // This node leaves, and the scheduler has all of its messages.
  void close_if_confirmed();
  void try_connect(size_t attempt);
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection, size_t attempt);
  void connect_again(const Status& why);
  void fail_to_connect(const Status& why);
  void check_self();
  void drop_channel();
  void hang_up();
  void finish_leaving();
  // Calls `f` with an empty list of actions, to be filled by membership_, and applies them.
  template <typename F>
  void decide(F&& f);
  void apply(const protocol::MembershipActions& actions);

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const ClientOptions options_;
  ClientEvents& events_;
  protocol::Membership membership_;
  transport::LazyTimer timer_;
  std::vector<transport::Address> candidates_;
  Status refusal_;           // not ok: a scheduler of another job has refused this node
  size_t last_refused_ = 0;  // number of the attempt
  TimeUs first_refusal_us_ = 0;
  protocol::Join join_;
  std::unique_ptr<ControlChannel> channel_;
  uint64_t received_ = 0;     // sequenced messages, over all connections
  protocol::MessageLog log_;  // of those sent, while may_resume()
  bool has_standby_ = true;   // or there may be one
  bool resuming_ = false;     // it follows the standby, which has not answered yet
  bool leaving_ = false;
  TimeUs leave_deadline_us_ = 0;
  transport::EventLoop::TimerId leave_timer_ = 0;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::cluster
