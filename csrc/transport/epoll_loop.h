// An event loop on a thread of its own that waits in epoll(7): for sockets, timers and posted
// tasks.
//
// An idle loop makes no system call. post() wakes a sleeping loop with one system call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/event_loop.h"

namespace byteps::transport {

// Gets the readiness of one descriptor. Must stay alive until unwatch() has returned.
class FdHandler {
 public:
  virtual ~FdHandler() = default;
  virtual void on_ready(uint32_t epoll_events) = 0;
};

class EpollLoop final : public EventLoop {
 public:
  // Starts the thread; `name` (at most 15 bytes) shows in ps and perf. All signals are blocked in
  // it. `on_out_of_memory` is called on the loop when a callback has ended with std::bad_alloc.
  // From then on the loop runs tasks and timers only, so that its owner can take everything down:
  // nobody knows how far that callback had come. In-process connections deliver nothing either, and
  // end at their grace period. Without it, or with any other exception, the process ends.
  static Result<std::unique_ptr<EpollLoop>> create(const std::string& name,
                                                   UniqueFunction<void(const Status&)> on_out_of_memory = {});
  // For code that uses descriptors. Precondition: `loop` is an EpollLoop.
  static EpollLoop& from(EventLoop& loop);
  ~EpollLoop() override;

  void post(Task task) override;
  void post_within(TimeUs delay_us, Task task) override;
  // Runs the task if the loop's thread sleeps in epoll(7), and posts it otherwise.
  void run_soon(Task task) override;
  bool in_loop() const override;
  void stop() override;
  TimeUs now_us() const override { return byteps::now_us(); }
  TimerId run_at(TimeUs at_us, Task task) override;
  void cancel(TimerId timer) override;
  void request_turn(TurnHandler* handler) override;
  void cancel_turn(TurnHandler* handler) override;

  // Loop thread only, all below; after stop() any one thread.
  Status watch(int fd, uint32_t epoll_events, FdHandler* handler);
  Status modify(int fd, uint32_t epoll_events);
  // No on_ready for `fd` follows, even if it is ready already.
  void unwatch(int fd);

 private:
  EpollLoop();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace byteps::transport
