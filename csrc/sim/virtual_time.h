// The event loops of a simulated cluster: all on one thread, in virtual time.
//
// The time is constant while a loop runs, and jumps to the next timer when no loop has anything to
// do. If several have, a random one of them makes the next pass. So a seed explores one
// interleaving of threads, and replays it. On a busy machine (VirtualLoop::preempt) a loop may also
// stand still for a while after a pass, as a thread that has lost its core.
//
// run_until() runs the loops on the calling thread. Tests that wait for loops as for real ones use
// a Driver; any thread may then use the loops, by the rules of EventLoop.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/random.h"
#include "transport/loop_queues.h"

namespace byteps::sim {

class VirtualLoop;

class VirtualTime final : public Clock {
 public:
  explicit VirtualTime(uint64_t seed) : random_(seed) {}
  ~VirtualTime() override;

  TimeUs now_us() const override;
  Random& random() { return random_; }

  // Number of passes of all loops.
  uint64_t num_passes() const { return num_passes_; }
  // Equal for two runs whose loops made the same passes at the same times.
  uint64_t fingerprint() const { return fingerprint_; }

  // `name`: for messages. The loop must not outlive this object.
  std::unique_ptr<VirtualLoop> make_loop(std::string name);

  // Runs the loops until `is_over` returns true (called after every pass), or nothing is left to do
  // before `deadline_us`. Returns false in the second case; then now_us() is the deadline, or the
  // time of the last pass if no timer is set.
  bool run_until(TimeUs deadline_us, const std::function<bool()>& is_over);

  // Runs the loops on its own thread at the pace of the system's clock, while it exists.
  class Driver {
   public:
    explicit Driver(VirtualTime& time);
    ~Driver();

   private:
    VirtualTime& time_;
    std::thread thread_;
  };

  // Held while a Driver runs a loop, and by code outside the loops that shares state with them.
  // Without a Driver all is on one thread, and locking does nothing.
  class Mutex {
   public:
    void lock() {
      if (is_shared_) mutex_.lock();
    }
    void unlock() {
      if (is_shared_) mutex_.unlock();
    }

   private:
    friend class VirtualTime;
    std::recursive_mutex mutex_;
    bool is_shared_ = false;  // changed only while no other thread uses the loops
  };
  Mutex& mutex() const { return mutex_; }

 private:
  friend class VirtualLoop;

  // Time of the next pass; 0: a loop is ready; kNever: no loop has anything to do.
  TimeUs earliest_us() const;
  // Time of the next pass, at least now; kNever: no loop has anything to do. If no loop is ready, it
  // makes those ready whose timers are due then.
  TimeUs next_us();
  // A random ready loop makes a pass. Precondition: next_us() <= now.
  void make_pass();
  void drive();
  void wake();

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  Random random_;
  TimeUs now_us_ = 0;
  std::vector<VirtualLoop*> loops_;  // in order of creation
  std::vector<VirtualLoop*> ready_;  // loops that have something to do now, in the order of events
  uint64_t num_passes_ = 0;
  uint64_t fingerprint_ = 0;
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
  // Any thread: as run_at, for what does not need the timer's number.
  void schedule(TimeUs at_us, Task task);
  TimeUs now_us() const override { return time_.now_us(); }
  TimerId run_at(TimeUs at_us, Task task) override;
  void cancel(TimerId timer) override;
  void request_turn(transport::TurnHandler* handler) override;
  void cancel_turn(transport::TurnHandler* handler) override;

  // `callback` is called by the destructor.
  void on_destroyed(std::function<void()> callback) { on_destroyed_ = std::move(callback); }
  // From now on it stands still after some passes, for up to this time.
  void preempt(TimeUs longest_us) { longest_preemption_us_ = longest_us; }
  // Like a thread of a stopped process, a paused loop makes no pass.
  void pause(bool paused);
  // Nothing runs any more; tasks and timers are destroyed with the loop.
  void kill() { killed_ = true; }

 private:
  friend class VirtualTime;

  VirtualLoop(VirtualTime& time, std::string name);
  // Time of the next pass; kNever: nothing to do.
  TimeUs ready_us() const;
  // It may have something to do now.
  void get_ready();
  void make_pass();
  void run_tasks();
  void run_turns();
  void check_thread() const;
  TimerId add_timer(TimeUs at_us, Task task);  // with the mutex locked

  VirtualTime& time_;
  const std::string name_;
  const uint64_t name_hash_;
  std::vector<Task> posted_;
  transport::TimerQueue timers_;
  transport::TurnQueue turns_;
  TimeUs longest_preemption_us_ = 0;
  TimeUs resumes_us_ = 0;  // it was preempted until then
  std::function<void()> on_destroyed_;
  bool is_ready_ = false;  // it is in VirtualTime::ready_
  bool paused_ = false;
  bool killed_ = false;
  bool stopped_ = false;
};

}  // namespace byteps::sim
