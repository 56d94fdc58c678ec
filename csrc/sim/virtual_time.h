// The event loops of a simulated cluster: all on one thread, in virtual time, in an order that a seed decides.
//
// Time stands still while a loop runs, and jumps to the next timer when no loop has anything to do. Of
// several loops that have something to do at the same time, a random one makes the next pass, so that a
// seed explores one interleaving of threads and replays it.
//
// run_until() drives the loops from the calling thread; then nothing here needs a second thread. Tests that
// wait for loops as for real ones use a Driver: a thread that runs the loops at the pace of the system's
// clock. With a Driver any thread may use the loops as EventLoop says.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "sim/random.h"
#include "transport/event_loop.h"

namespace byteps::sim {

class VirtualLoop;

class VirtualTime final : public Clock {
 public:
  explicit VirtualTime(uint64_t seed) : random_(seed) {}
  ~VirtualTime() override;

  TimeUs now_us() const override;
  Random& random() { return random_; }

  // `name` is for messages. The loop must not outlive this object.
  std::unique_ptr<VirtualLoop> make_loop(std::string name);

  // Runs loops until `is_over` (asked after every pass) or until nothing is left to do before `deadline_us`.
  // False in the second case; then now_us() is the deadline, or the time of the last pass if no timer is set at all.
  bool run_until(TimeUs deadline_us, const std::function<bool()>& is_over);

  // Runs the loops on a thread of its own at the pace of the system's clock, for as long as it exists.
  class Driver {
   public:
    explicit Driver(VirtualTime& time);
    ~Driver();

   private:
    VirtualTime& time_;
    std::thread thread_;
  };

  // Held while a loop runs. What is not on a loop and shares something with loops holds it as well; without
  // a Driver nobody waits for it.
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  friend class VirtualLoop;

  // The loop that makes the next pass, and when; null if no loop has anything to do, ever.
  struct Next {
    VirtualLoop* loop = nullptr;
    TimeUs at_us = kNever;
  };
  Next next();
  void drive();
  void wake();

  mutable std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  Random random_;
  TimeUs now_us_ = 0;
  std::vector<VirtualLoop*> loops_;  // in the order of creation
  bool driven_ = false;
  bool driver_ends_ = false;
};

class VirtualLoop final : public transport::EventLoop {
 public:
  ~VirtualLoop() override;

  void post(Task task) override;
  bool run_and_wait(Task task) override;
  bool in_loop() const override;
  void stop() override;
  TimeUs now_us() const override { return time_.now_us(); }
  TimerId run_at(TimeUs at_us, Task task) override;
  void cancel(TimerId timer) override;
  void request_turn(transport::TurnHandler* handler) override;
  void cancel_turn(transport::TurnHandler* handler) override;

  // A paused loop makes no pass, as the threads of a stopped process; what is posted and due waits.
  void pause(bool paused);
  // The process is gone: what is posted, due or wanted never runs, and is destroyed with the loop.
  void kill() { killed_ = true; }

 private:
  friend class VirtualTime;

  VirtualLoop(VirtualTime& time, std::string name) : time_(time), name_(std::move(name)) {}
  // When it has something to do; kNever if it has not.
  TimeUs ready_us() const;
  void make_pass();
  void run_tasks();
  void run_timers();
  void run_turns();
  void check_thread() const;

  VirtualTime& time_;
  const std::string name_;
  std::vector<Task> posted_;
  std::map<std::pair<TimeUs, TimerId>, Task> timers_;
  std::unordered_map<TimerId, TimeUs> timer_times_;
  TimerId last_timer_ = 0;
  std::vector<transport::TurnHandler*> turns_;
  std::vector<transport::TurnHandler*> turns_running_;
  bool paused_ = false;
  bool killed_ = false;
  bool stopped_ = false;
};

}  // namespace byteps::sim
