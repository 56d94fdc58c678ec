// Steps that take place one after the other, each with a deadline, without a thread that waits.
#pragma once

#include <deque>
#include <memory>

#include "base/clock.h"
#include "base/unique_function.h"
#include "transport/event_loop.h"

namespace byteps::node {

class StepSequence : public std::enable_shared_from_this<StepSequence> {
 public:
  // Begins something that calls `done` on any thread, now or later. Returns the time at which the
  // next step begins if `done` was not called before; kNever: not before.
  using Step = UniqueFunction<TimeUs(UniqueFunction<void()> done)>;

  // Any thread. Runs the steps on `loop`, then calls `done` there. The loop must outlive all that
  // the steps have begun.
  static void run(transport::EventLoop& loop, std::deque<Step> steps, UniqueFunction<void()> done);

 private:
  StepSequence(transport::EventLoop& loop, std::deque<Step> steps, UniqueFunction<void()> done);
  void begin_next();
  void end(int step);

  transport::EventLoop& loop_;
  std::deque<Step> steps_;
  UniqueFunction<void()> done_;
  int current_ = 0;  // number of the step in progress
  transport::EventLoop::TimerId timer_ = 0;
};

}  // namespace byteps::node
