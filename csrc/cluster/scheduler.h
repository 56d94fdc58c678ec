// The scheduler role: carries out what protocol/scheduler_state decides, on one event loop.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/event_flag.h"
#include "cluster/control_channel.h"
#include "protocol/scheduler_state.h"
#include "transport/lazy_timer.h"

namespace byteps::cluster {

// Built and destroyed off the loop; everything else happens on it.
class Scheduler final : public ControlEvents {
 public:
  // `is_alone`: no node in this process logs what others are waited for.
  Scheduler(transport::EventLoop& loop, protocol::SchedulerOptions options, bool is_alone = false);
  ~Scheduler() override;

  // On the first of `ports` that is free on `ip`; kUnavailable lists what was tried.
  Status listen(transport::Transport& tcp, const std::string& ip, const std::vector<int>& ports);
  // On a listening socket handed over by a launcher; owned from here on.
  Status listen(transport::Transport& tcp, int socket_fd);
  const transport::Address& address() const { return listener_->address(); }

  // Set when the job has ended and everybody was told; who does not take the news is not waited for long. Any thread.
  EventFlag& ended() { return ended_; }
  // ok: all workers left in order. After ended().
  const Status& outcome() const { return gave_up_.is_ok() ? state_.failure() : gave_up_; }
  // Any thread. This process leaves: tells everybody, flushes, closes; then calls `done` on the loop. Whoever
  // does not read the news by `deadline_us` is cut off.
  void shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> done);
  // The loop's thread, which is of no use any more: hangs up on everybody, and the job has ended because of `why`.
  void give_up(const Status& why);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  void open(std::unique_ptr<transport::Listener> listener);
  void accept(std::unique_ptr<transport::Connection> connection);
  void apply(const protocol::SchedulerActions& actions);
  void tell_of_nonsense(const ControlChannel& channel, const Status& why);
  void check_ended();
  void set_ended();
  void finish_shutdown();

  transport::EventLoop& loop_;
  const bool is_alone_;
  protocol::SchedulerState state_;
  transport::LazyTimer timer_;
  std::unique_ptr<transport::Listener> listener_;
  std::unordered_map<protocol::PeerId, std::unique_ptr<ControlChannel>> peers_;
  std::unordered_map<const ControlChannel*, protocol::PeerId> ids_;
  protocol::PeerId next_peer_ = 1;
  std::set<std::string> nonsense_from_;  // addresses
  bool shut_down_ = false;
  UniqueFunction<void()> shutdown_done_;
  Status gave_up_;                                 // why, if it has
  transport::EventLoop::TimerId grace_timer_ = 0;  // since the job has ended
  EventFlag
      ended_;  // the job has ended or shutdown() was called, and no connection is left, or grace_period is
};

}  // namespace byteps::cluster
