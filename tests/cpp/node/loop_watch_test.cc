#include "node/loop_watch.h"

#include <gtest/gtest.h>

#include "transport/harness.h"

namespace byteps::node {
namespace {

class LoopWatchTest : public testing::Test {
 protected:
  LoopWatchTest() {
    watch_.add(*well_, "bps-data-0");
    watch_.add(*other_, "bps-data-1");
  }
  // One check per heartbeat; the loops have time to answer.
  Status check() {
    const Status status = watch_.check();
    well_->run_and_wait([] {});
    return status;
  }

  std::unique_ptr<transport::EventLoop> well_ = transport::make_loop();
  std::unique_ptr<transport::EventLoop> other_ = transport::make_loop();
  LoopWatch watch_;
};

TEST_F(LoopWatchTest, LoopsThatRunAreWell) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(check().is_ok());
    other_->run_and_wait([] {});
  }
}

TEST_F(LoopWatchTest, ALoopThatHangsIsNamedAfterSomeChecks) {
  EXPECT_TRUE(check().is_ok());
  other_->run_and_wait([] {});
  const transport::StoppedLoop stopped(*other_);
  for (int i = 0; i < LoopWatch::kMaxUnansweredChecks; ++i) EXPECT_TRUE(check().is_ok()) << i;
  const Status status = check();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("bps-data-1"), std::string::npos) << status;
}

TEST_F(LoopWatchTest, ALoopThatGoesOnIsForgiven) {
  {
    const transport::StoppedLoop stopped(*other_);
    for (int i = 0; i < LoopWatch::kMaxUnansweredChecks; ++i) EXPECT_TRUE(check().is_ok()) << i;
  }
  other_->run_and_wait([] {});
  for (int i = 0; i < LoopWatch::kMaxUnansweredChecks; ++i) {
    EXPECT_TRUE(check().is_ok()) << i;
    other_->run_and_wait([] {});
  }
}

}  // namespace
}  // namespace byteps::node
