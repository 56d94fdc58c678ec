// A thread that waits in epoll(7) and runs what has become ready: sockets, timers, posted functions.
//
// Everything of a connection happens on its loop's thread, so connections need no locks. Idle loops make no
// system call. Other threads reach a loop only through post().
//
// One pass of the loop: posted tasks, due timers, turns, wait for readiness, ready descriptors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_function.h"

namespace byteps::transport {

// Gets the readiness of one descriptor. Must stay alive until unwatch() has returned.
class FdHandler {
 public:
  virtual ~FdHandler() = default;
  virtual void on_ready(uint32_t epoll_events) = 0;
};

// Gets a turn of its own at the end of a pass, when all that became ready has run: for work that is cheaper
// done together (a connection writes all frames of a pass with one system call), or that goes on next pass.
class TurnHandler {
 public:
  virtual ~TurnHandler() = default;
  virtual void on_turn() = 0;
};

class EventLoop {
 public:
  using Task = UniqueFunction<void()>;
  using TimerId = uint64_t;

  // Starts the thread; `name` (at most 15 bytes) shows in ps and perf. All signals are blocked in it.
  // `on_out_of_memory` is called on it when a callback has ended with std::bad_alloc. From then on the loop runs tasks and
  // timers only, so that its owner can take everything down: nobody knows how far that callback had come. Without it, or
  // with any other exception, the process ends.
  static Result<std::unique_ptr<EventLoop>> create(const std::string& name,
                                                   UniqueFunction<void(const Status&)> on_out_of_memory = {});
  // stop(), if not yet done.
  ~EventLoop();

  // Any thread. Runs `task` on the loop, in the order posted; from the loop's own thread: after the current
  // callback. Wakes the loop with one system call only if it sleeps. After stop() tasks are destroyed unrun, those
  // posted from the loop's own thread not before it has ended.
  void post(Task task);
  // Any thread but the loop's: posts and blocks until `task` has run. False if the loop has stopped.
  bool run_and_wait(Task task);
  bool in_loop() const;
  // Any thread but the loop's: runs what was posted before, then ends and joins the thread. Idempotent.
  void stop();

  // Loop thread only, all below; after stop() any one thread, so that owners can clean up.
  Status watch(int fd, uint32_t epoll_events, FdHandler* handler);
  Status modify(int fd, uint32_t epoll_events);
  // No on_ready for `fd` follows, even if it is ready already.
  void unwatch(int fd);
  // Runs `task` once at now_us() >= at_us.
  TimerId run_at(TimeUs at_us, Task task);
  // Destroys the task unrun; nothing if it has run.
  void cancel(TimerId timer);
  // One on_turn at the end of this pass; asked for during turns: of the next one, without sleeping before.
  // Ask at most once per turn.
  void request_turn(TurnHandler* handler);
  // No on_turn follows until the next request.
  void cancel_turn(TurnHandler* handler);

 private:
  EventLoop();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace byteps::transport
