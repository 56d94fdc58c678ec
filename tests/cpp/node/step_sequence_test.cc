#include "node/step_sequence.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/virtual_time.h"

namespace byteps::node {
namespace {

using Done = UniqueFunction<void()>;

class StepSequenceTest : public testing::Test {
 protected:
  // A step that notes `name` and calls done `after_us` later (kNever: not at all).
  StepSequence::Step step(const std::string& name, TimeUs after_us, TimeUs limit_us) {
    return [=, this](Done done) {
      note(name);
      if (after_us == 0) {
        done();
      } else if (after_us != kNever) {
        loop_->run_at(time_.now_us() + after_us, std::move(done));
      }
      return limit_us == kNever ? kNever : time_.now_us() + limit_us;
    };
  }
  void note(const std::string& what) { notes_.push_back(what + " " + std::to_string(time_.now_us())); }
  template <typename... Steps>
  void run(Steps... each) {
    std::deque<StepSequence::Step> steps;
    (steps.push_back(std::move(each)), ...);
    StepSequence::run(*loop_, std::move(steps), [this] { note("end"); });
    time_.run_until(1'000'000, [] { return false; });
  }

  sim::VirtualTime time_{1};
  const std::unique_ptr<sim::VirtualLoop> loop_ = time_.make_loop("loop");
  std::vector<std::string> notes_;
};

TEST_F(StepSequenceTest, AStepBeginsWhenThePreviousOneIsDone) {
  run(step("a", 5, 100), step("b", 0, kNever), step("c", 7, kNever));
  EXPECT_EQ(notes_, (std::vector<std::string>{"a 0", "b 5", "c 5", "end 12"}));
}

TEST_F(StepSequenceTest, OrAtItsDeadlineAndALateReportDoesNothing) {
  run(step("a", 150, 100), step("b", 80, 100), step("c", kNever, 10));
  EXPECT_EQ(notes_, (std::vector<std::string>{"a 0", "b 100", "c 180", "end 190"}));
}

TEST_F(StepSequenceTest, WithoutStepsItEndsAtOnce) {
  run();
  EXPECT_EQ(notes_, std::vector<std::string>{"end 0"});
}

TEST_F(StepSequenceTest, ALoopThatStopsDropsTheRest) {
  std::deque<StepSequence::Step> steps;
  steps.push_back(step("a", 5, 100));
  steps.push_back(step("b", 5, 100));
  StepSequence::run(*loop_, std::move(steps), [this] { note("end"); });
  time_.run_until(2, [] { return false; });
  loop_->stop();
  EXPECT_EQ(notes_, std::vector<std::string>{"a 0"});
}

}  // namespace
}  // namespace byteps::node
