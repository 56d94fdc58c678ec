#include "node/step_sequence.h"

#include <utility>

namespace byteps::node {

StepSequence::StepSequence(transport::EventLoop& loop, std::deque<Step> steps, UniqueFunction<void()> done)
    : loop_(loop), steps_(std::move(steps)), done_(std::move(done)) {}

void StepSequence::run(transport::EventLoop& loop, std::deque<Step> steps, UniqueFunction<void()> done) {
  const std::shared_ptr<StepSequence> sequence(new StepSequence(loop, std::move(steps), std::move(done)));
  loop.post([sequence] { sequence->begin_next(); });
}

void StepSequence::begin_next() {
  if (steps_.empty()) return std::exchange(done_, nullptr)();
  Step step = std::move(steps_.front());
  steps_.pop_front();
  const int number = ++current_;
  const TimeUs until_us = step([sequence = shared_from_this(), number] {
    sequence->loop_.post([sequence, number] { sequence->end(number); });
  });
  if (until_us == kNever) return;
  timer_ = loop_.run_at(until_us, [sequence = shared_from_this(), number] {
    sequence->timer_ = 0;
    sequence->end(number);
  });
}

void StepSequence::end(int step) {
  if (step != current_) return;  // its deadline has passed
  ++current_;
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  begin_next();
}

}  // namespace byteps::node
