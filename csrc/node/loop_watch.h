// Whether the data loops of this process still run. One that hangs looks well from outside: its sockets stay open, the
// kernel answers for them, and the control loop goes on sending heartbeats. So the control loop asks, with each heartbeat.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/event_loop.h"

namespace byteps::node {

class LoopWatch {
 public:
  // Adds one that outlives this object; before the first check().
  void add(transport::EventLoop& loop, std::string name);
  // On one thread, at regular times. Asks each loop for a sign of life; kUnavailable names one that has given none though
  // it was asked `kMaxUnansweredChecks` calls ago. Time in which the whole process was stopped does not count.
  Status check();

  static constexpr int kMaxUnansweredChecks = 3;

 private:
  struct Watched {
    transport::EventLoop* loop;
    std::string name;
    std::shared_ptr<std::atomic<bool>> answered;  // shared: the answer may come when this object is gone
    int unanswered_checks;
  };
  std::vector<Watched> loops_;
};

}  // namespace byteps::node
