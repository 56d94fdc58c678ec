// A thread that runs posted tasks and timers, one at a time: the interface.
//
// Everything of a connection happens on its loop's thread, so connections need no locks. Other
// threads reach a loop only through post(). EpollLoop (epoll_loop.h) waits for sockets as well and
// follows the system's clock; the simulator's loops share one thread and follow a virtual clock.
//
// One pass of the loop: posted tasks, due timers, turns; then, in an EpollLoop, ready descriptors.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/unique_function.h"

namespace byteps::transport {

// Gets a turn of its own at the end of a pass, when all that became ready has run: for work that is
// cheaper done together (a connection writes all frames of a pass with one system call), or that
// goes on in the next pass.
class TurnHandler {
 public:
  virtual ~TurnHandler() = default;
  virtual void on_turn() = 0;
};

class EventLoop : public Clock {
 public:
  using Task = UniqueFunction<void()>;
  using TimerId = uint64_t;

  EventLoop() = default;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  // Stops the loop first, if that was not done.
  ~EventLoop() override = default;

  // Any thread. Runs `task` on the loop, in the order posted; from the loop's own thread: after the
  // current callback. After stop() tasks are destroyed without being run; those posted from the
  // loop's own thread not before it has ended.
  virtual void post(Task task) = 0;
  // Any thread: as post(), but lets the loop sleep on if it wakes up by itself within `delay_us`.
  // Saves the caller a system call.
  virtual void post_within(TimeUs delay_us, Task task) {
    static_cast<void>(delay_us);
    post(std::move(task));
  }
  // Any thread: as post(), but may run `task`, and the turns that it requests, inside the call: the
  // calling thread is then the loop's thread for as long. Saves a wake-up, so it is for short tasks.
  // The caller must not hold a lock that tasks or callbacks of the loop take.
  virtual void run_soon(Task task) { post(std::move(task)); }
  // Any thread but the loop's: posts `task` and blocks until it has run. False if the loop has
  // stopped.
  virtual bool run_and_wait(Task task);
  // Whether the calling thread is the loop's, perhaps only inside run_soon().
  virtual bool in_loop() const = 0;
  // Any thread but the loop's: runs what was posted before, then ends. Idempotent.
  virtual void stop() = 0;
  // now_us(), of Clock: the clock that timers follow.

  // Loop thread only, all below; after stop() any one thread, so that owners can clean up.

  // Runs `task` once when now_us() >= at_us.
  virtual TimerId run_at(TimeUs at_us, Task task) = 0;
  // Destroys the task without running it; does nothing if it has run.
  virtual void cancel(TimerId timer) = 0;
  // Calls on_turn once at the end of this pass; when asked during turns, at the end of the next
  // pass, without sleeping before. Ask at most once per turn.
  virtual void request_turn(TurnHandler* handler) = 0;
  // No on_turn follows until the next request.
  virtual void cancel_turn(TurnHandler* handler) = 0;
};

}  // namespace byteps::transport
