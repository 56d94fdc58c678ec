// CoordinatorState: members that leave, jobs with too few of them, and the end.
#include "protocol/coordinator_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(CoordinatorStateTest, AMemberThatResignsLeavesWhenAllOthersKnow) {
  start(3);
  enrol(4);
  receive(2, Resign{});
  EXPECT_EQ(told_, (Texts{"1: Resigned 2", "3: Resigned 2", "4: Resigned 2"}));
  receive(2, Resign{});
  EXPECT_EQ(told_, Texts{});
  receive(1, Resigned{2, ""});
  receive(1, Resigned{2, ""});
  receive(1, Resigned{9, ""});
  receive(4, Resigned{2, ""});
  EXPECT_EQ(told_, Texts{});
  receive(3, Resigned{2, ""});
  EXPECT_EQ(told_, (Texts{"2: Resigned 2", "2: closed"})) << "the others' programs may be done as well";
  EXPECT_EQ(state_->num_active(), 2u);
  close(2);
  tick(10 * kGatherUs);
  EXPECT_EQ(told_, Texts{}) << "nobody enters any more";
}

TEST_F(CoordinatorStateTest, TheOthersGoOnWithoutOneThatHasLeftIfTheyNeedTo) {
  start(3);
  receive(2, Resign{});
  receive(1, Resigned{2, ""});
  receive(3, Resigned{2, ""});
  receive(1, Broken{1, "rank 1 has left"});
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 3"}));
  receive(3, Broken{1, "rank 1 has left"});
  EXPECT_EQ(told_, Texts{});
  form(2, {1, 3});
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 3"})) << "a broadcast may need another root";
  enrol(4);
  close(1);
  EXPECT_EQ(told_, (Texts{"3: Cancelled 3", "3: Form 4 of 1: 3"}));
  told_.clear();
  form(4, {3});
  EXPECT_EQ(told_, (Texts{"3: Form 5 of 5: 3"})) << "nobody enters any more";
}

TEST_F(CoordinatorStateTest, TheJobEndsWhenAllHaveResigned) {
  start(2);
  enrol(3);
  receive(1, Resign{});
  receive(2, Resigned{1, ""});
  receive(3, Resigned{1, ""});
  receive(2, Resign{});
  EXPECT_EQ(told_, (Texts{"3: Resigned 2"}));
  receive(3, Resigned{2, ""});
  EXPECT_EQ(told_, (Texts{"2: Resigned 2", "2: closed", "3: Lost: the job is over", "3: closed"}));
  EXPECT_TRUE(state_->has_ended());
  EXPECT_TRUE(state_->failure().is_ok());
  EXPECT_EQ(state_->next_tick_us(), kNever);
}

// Each is closed before the others' confirmations that it still owes have come.
TEST_F(CoordinatorStateTest, MembersThatResignAtTheSameTimeDoNotWaitForEachOther) {
  start(3);
  receive(1, Resign{});
  receive(2, Resign{});
  EXPECT_EQ(told_, (Texts{"1: Resigned 2", "3: Resigned 2"}));
  receive(3, Resigned{1, ""});
  receive(3, Resigned{2, ""});
  EXPECT_EQ(told_, Texts{});
  receive(2, Resigned{1, ""});
  EXPECT_EQ(told_, (Texts{"1: Resigned 1", "1: closed", "2: Resigned 2", "2: closed"}));
  EXPECT_EQ(state_->num_active(), 1u);
}

TEST_F(CoordinatorStateTest, LostMembersNeedNotConfirmThatOneResigns) {
  start(3);
  receive(2, Resign{});
  receive(1, Resigned{2, ""});
  close(3);
  EXPECT_EQ(told_, (Texts{"2: Resigned 2", "2: closed", "1: Form 2 of 1: 1"}));
}

TEST_F(CoordinatorStateTest, AMemberThatIsLostWhileItResignsIsLost) {
  start(3);
  receive(2, Resign{});
  close(2);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 3"}));
  receive(1, Resigned{2, ""});
  receive(3, Resigned{2, ""});
  EXPECT_EQ(told_, Texts{});
  form(2, {1, 3});
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 3"})) << "whether its program was done is not known";
}

// Others may need results that it has.
TEST_F(CoordinatorStateTest, OneThatLeavesDuringARecoveryIsKeptUntilTheEndOfIt) {
  start(3);
  close(3);
  receive(1, Resign{});
  told_.clear();
  receive(2, Resigned{1, ""});
  EXPECT_EQ(told_, Texts{});
  form(2, {1, 2});
  EXPECT_EQ(told_, (Texts{"1: Resigned 1", "1: closed"}));
}

TEST_F(CoordinatorStateTest, ACauseIsALoss) {
  start(3);
  receive(2, Resign{.cause = "KeyError: 'label'", .others_stay = false});
  EXPECT_EQ(told_, (Texts{"2: Resigned 2", "2: closed", "1: Form 2 of 1: 1 3"}));
  EXPECT_EQ(why_, "worker 2 (host h, pid 102) ended by KeyError: 'label'");
  form(2, {1, 3});
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 3"}));
}

TEST_F(CoordinatorStateTest, TheOthersGoOnAtOnceWithoutOneThatLeavesAlone) {
  start(3);
  enrol(4);
  receive(2, Resign{.cause = {}, .others_stay = true});
  tick(kGatherUs);
  EXPECT_EQ(told_, Texts{}) << "no generation is planned with a member that resigns";
  for (const uint32_t member : {1, 4}) receive(member, Resigned{2, ""}, kGatherUs);
  receive(3, Resigned{2, ""}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"2: Resigned 2", "2: closed", "1: Form 2 of 1: 1 3"}));
  EXPECT_EQ(why_, "worker 2 (host h, pid 102) has left");
  form(2, {1, 3}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 3 4"})) << "others may enter";
}

TEST_F(CoordinatorStateTest, AGenerationIsCancelledIfOneOfItsMembersLeaves) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  receive(2, Resign{.cause = {}, .others_stay = true}, kGatherUs);
  receive(1, Resigned{2, ""}, kGatherUs);
  receive(3, Resigned{2, ""}, kGatherUs);
  EXPECT_EQ(told_,
            (Texts{"2: Resigned 2", "2: closed", "1: Cancelled 2", "3: Cancelled 2", "1: Form 3 of 1: 1"}));
}

TEST_F(CoordinatorStateTest, TheLastOneThatLeavesAloneFailsTheJob) {
  start(1);
  receive(1, Resign{.cause = {}, .others_stay = true});
  EXPECT_EQ(told_, (Texts{"1: Resigned 1", "1: closed"}));
  expect_failed(
      StatusCode::kUnavailable,
      "no worker is left that has the state of the training; the last one: worker 1 (host h, pid 101) "
      "has left");
}

TEST_F(CoordinatorStateTest, ANewcomerThatLeavesDoesNotEndTheJobOfTheOthers) {
  start(2);
  enrol(3);
  enrol(4);
  tick(kGatherUs);
  receive(3, Resign{}, kGatherUs);
  for (const uint32_t member : {1, 2}) receive(member, Resigned{3, ""}, kGatherUs);
  receive(4, Resigned{3, ""}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"3: Resigned 3", "3: closed", "1: Cancelled 2", "2: Cancelled 2", "4: Cancelled 2",
                          "1: Form 3 of 3: 1 2 4"}));
}

TEST_F(CoordinatorStateTest, AMemberThatLeavesBeforeTheStartIsMadeUpByOthers) {
  enrol(1);
  receive(1, Resign{});
  EXPECT_EQ(told_, (Texts{"1: Resigned 1", "1: closed"}));
  enrol(2);
  enrol(3);
  EXPECT_EQ(told_, (Texts{"3: Enrolled 3", "2: Form 1 of 1: 2 3"}));
}

// Too few

TEST_F(CoordinatorStateTest, MembersAreToldHowManyAreMissing) {
  options_.min_workers = 2;
  start(3);
  close(3);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 2"}));
  close(2);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 1: 1", "1: Missing 1"}));
  form(3, {1});
  EXPECT_EQ(told_, Texts{}) << "numbering one rank anew would help nobody";
  enrol(4);
  tick(kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 4 of 4: 1 4"}));
  form(4, {1, 4}, kGatherUs);
  receive(1, Entered{4}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Entered 4", "4: Entered 4", "1: Missing 0", "4: Missing 0"}));
  tick(2 * kShortageUs);
  EXPECT_FALSE(state_->has_ended());
}

TEST_F(CoordinatorStateTest, TheJobFailsIfTooFewAreLeftForTooLong) {
  options_.min_workers = 3;
  start(3);
  close(3, 5);
  form(2, {1, 2}, 5);
  for (TimeUs now = kBlameUs; now < kShortageUs; now += kBlameUs) tick(now);
  close(2, kShortageUs);  // does not begin it anew
  tick(kShortageUs + 4);
  EXPECT_EQ(told_, Texts{});
  EXPECT_EQ(state_->next_tick_us(), kShortageUs + 5);
  tick(kShortageUs + 5);
  const std::string why = "the job has had fewer than 3 workers for 60 s";
  EXPECT_EQ(told_, (Texts{"1: Lost: " + why, "1: closed"}));
  expect_failed(StatusCode::kDeadlineExceeded, why);
}

TEST_F(CoordinatorStateTest, NobodyWaitsForWorkersAtTheEnd) {
  options_.min_workers = 3;
  start(3);
  close(3);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 2", "1: Missing 1", "2: Missing 1"}));
  form(2, {1, 2});
  receive(1, Resign{});
  receive(2, Resigned{1, ""});
  EXPECT_EQ(told_, (Texts{"1: Resigned 1", "1: closed", "2: Missing 0"}));
  for (TimeUs now = 0; now < 2 * kShortageUs; now += kBlameUs) tick(now);
  EXPECT_FALSE(state_->has_ended());
  receive(2, Resign{}, 2 * kShortageUs);
  EXPECT_TRUE(state_->has_ended());
  EXPECT_TRUE(state_->failure().is_ok());
}

// The launcher

TEST_F(CoordinatorStateTest, AllAreToldOfAShutdown) {
  start(2);
  enrol(3);
  collect([&](auto& actions) { state_->on_shutdown("stopped by a signal", actions); });
  EXPECT_EQ(told_, (Texts{"1: Lost: stopped by a signal", "1: closed", "2: Lost: stopped by a signal",
                          "2: closed", "3: Lost: stopped by a signal", "3: closed"}));
  expect_failed(StatusCode::kUnavailable, "stopped by a signal");
  collect([&](auto& actions) { state_->on_shutdown("again", actions); });
  EXPECT_EQ(told_, Texts{});
  close(1);
  tick_only(kTimeoutUs);
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, DeadlinesMayBeInfinite) {
  options_.start_timeout_us = options_.shortage_timeout_us = kNever;
  options_.min_workers = 2;
  state_ = std::make_unique<CoordinatorState>(options_, 5);
  enrol(1, 5);
  tick(kStartUs);
  EXPECT_FALSE(state_->has_ended());
  enrol(2, kStartUs);
  form(1, {1, 2}, kStartUs);
  close(2, kStartUs);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1", "1: Missing 1"}));
  tick(kStartUs + kTimeoutUs / 2);
  EXPECT_FALSE(state_->has_ended());
}

}  // namespace
}  // namespace byteps::protocol
