// Detects data loops of this process that hang. Other processes cannot see it: the sockets stay
// open, the kernel answers for them, and the control loop goes on sending heartbeats. So the
// control loop checks the data loops with each heartbeat.
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
  // Adds a loop, which must outlive this object. To be called before the first check().
  void add(transport::EventLoop& loop, std::string name);
  // Asks each loop to answer. To be called on one thread, at regular intervals. kUnavailable names
  // a loop that has not answered for `kMaxUnansweredChecks` calls. Time in which the whole process
  // was stopped does not count.
  Status check();

  static constexpr int kMaxUnansweredChecks = 3;

 private:
  struct Watched {
    transport::EventLoop* loop;
    std::string name;
    // Shared, because the answer may come after this object is gone.
    std::shared_ptr<std::atomic<bool>> answered;
    int unanswered_checks;
  };
  std::vector<Watched> loops_;
};

}  // namespace byteps::node
