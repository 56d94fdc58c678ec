// Detects data loops of this process that hang, with each heartbeat of the control loop. Other
// processes cannot see it: the kernel answers for the sockets, and heartbeats go on.
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
  // a loop that has not answered for `kMaxUnansweredChecks` calls. Calls are counted, not time, in
  // which the whole process may have been stopped.
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
