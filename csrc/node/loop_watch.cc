#include "node/loop_watch.h"

#include <utility>

namespace byteps::node {

void LoopWatch::add(transport::EventLoop& loop, std::string name) {
  loops_.push_back({&loop, std::move(name), std::make_shared<std::atomic<bool>>(true), 0});
}

Status LoopWatch::check() {
  for (Watched& watched : loops_) {
    if (!watched.answered->load()) {
      if (++watched.unanswered_checks < kMaxUnansweredChecks) continue;
      return unavailable(
          "its thread " + watched.name +
          ", which sends and sums tensors, hangs: see where it is with `gdb -p` or `py-spy dump --native`");
    }
    watched.unanswered_checks = 0;
    watched.answered->store(false);
    watched.loop->post([answered = watched.answered] { answered->store(true); });
  }
  return Status::ok();
}

}  // namespace byteps::node
