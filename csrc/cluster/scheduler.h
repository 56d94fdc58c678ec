// The scheduler role: applies the decisions of protocol/scheduler_state on one event loop, and has
// them repeated by a standby (protocol/standby.h) if SchedulerOptions::has_standby.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/milestone.h"
#include "cluster/control_channel.h"
#include "protocol/scheduler_state.h"
#include "protocol/standby.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// Destroyed on a thread other than the loop's. Everything else happens on the loop.
class Scheduler final : public ControlEvents {
 public:
  // `tcp`: to try whether the processes of nodes are still there; must outlive this. Its connections
  // end when the network resets them. `is_alone`: this process has no node, so the scheduler logs what
  // it waits for.
  Scheduler(transport::EventLoop& loop, transport::Transport& tcp, protocol::SchedulerOptions options,
            bool is_alone = false);
  // Takes the place of the scheduler that `replica` repeats; the nodes come by accept(). Loop thread.
  Scheduler(transport::EventLoop& loop, transport::Transport& tcp, protocol::SchedulerReplica replica);
  ~Scheduler() override;

  // Loop thread. A connection that somebody else's listener has accepted.
  void accept(std::unique_ptr<transport::Connection> connection);
  // Listens on the first free port of `ports` on `ip`. kUnavailable lists the addresses tried.
  Status listen(transport::Transport& tcp, const std::string& ip, const std::vector<int>& ports);
  // Listens on a socket that a launcher has opened, and owns it from now on.
  Status listen(transport::Transport& tcp, int socket_fd);
  TimeUs timeout_us() const { return state_.timeout_us(); }
  const transport::Address& address() const { return listener_->address(); }

  // Any thread. Reached when the job has ended and all peers have been told; peers that do not read
  // the message are waited for during a short grace period only.
  Milestone& ended() { return ended_; }
  // ok: all workers left in order. Valid from ended() on.
  const Status& outcome() const { return gave_up_.is_ok() ? state_.failure() : gave_up_; }
  // As SchedulerState::known_tensors. After the loop has stopped.
  std::set<uint64_t> known_tensors() const { return state_.known_tensors(); }
  // Any thread. This process leaves: tells all peers, sends everything, closes the connections, and
  // then calls `done` on the loop. Peers that have not read the message by `deadline_us` are
  // closed.
  void shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> done);
  // The loop's thread, if it cannot go on: closes all connections; the job has ended because of
  // `why`.
  void give_up(const Status& why);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_interrupted(ControlChannel& channel) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  // Calls `listen` with a callback for connections, on the loop, and keeps its listener.
  template <typename Listen>
  Status open(Listen&& listen);
  TimeUs now_us() const { return loop_.now_us() + clock_offset_us_; }
  TimeUs next_tick_us() const;
  void tick();
  void handle(const protocol::SchedulerEvent& event);
  // A node of the scheduler whose place this one has taken.
  Status on_rejoin(ControlChannel& channel, const protocol::Rejoin& rejoin);
  // The node connects again if its process is there; else it is lost. Tries its service to find out.
  void check_process(protocol::PeerId peer);
  bool is_interrupted(protocol::PeerId peer) const;
  void send_to(protocol::PeerId peer, const protocol::Control& message);
  void apply(const protocol::SchedulerActions& actions);
  void apply(const protocol::SendRoster& send);
  void log_invalid_message(const ControlChannel& channel, const Status& why);
  void check_ended();
  void set_ended();
  void finish_shutdown();

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const bool is_alone_;
  TimeUs clock_offset_us_ = 0;  // of the times of state_
  protocol::SchedulerState state_;
  std::optional<protocol::Replication> replication_;
  // Of nodes that have not come from the lost scheduler yet.
  std::unordered_map<protocol::PeerId, protocol::SchedulerReplica::Session> sessions_;
  transport::LazyTimer timer_;
  std::unique_ptr<transport::Listener> listener_;
  std::unordered_map<protocol::PeerId, std::unique_ptr<ControlChannel>> peers_;
  std::unordered_map<const ControlChannel*, protocol::PeerId> ids_;
  protocol::PeerId next_peer_;
  std::set<std::string> invalid_message_hosts_;  // hosts that have sent invalid messages
  bool shut_down_ = false;
  UniqueFunction<void()> shutdown_done_;
  Status gave_up_;                                 // argument of give_up()
  transport::EventLoop::TimerId grace_timer_ = 0;  // runs from the end of the job
  // The job has ended or shutdown() was called, and all connections are closed or the grace period
  // has expired.
  Milestone ended_;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace byteps::cluster
