// CoordinatorState: members that are lost, and generations that break.
#include "protocol/coordinator_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(CoordinatorStateTest, TheOthersGoOnAtOnceWhenAConnectionEnds) {
  start(3);
  close(2);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 3"}));
  EXPECT_EQ(why_, "worker 2 (host h, pid 102) ended without leaving (end of file)");
  EXPECT_EQ(state_->num_active(), 2u);
  receive(1, Hosting{2, "ip:1"});
  EXPECT_EQ(told_, (Texts{"3: Form 2 of 1: 1 3 at ip:1"}));
  EXPECT_EQ(why_, "worker 2 (host h, pid 102) ended without leaving (end of file)");
  receive(1, Formed{2});
  EXPECT_EQ(told_, Texts{});
  receive(3, Formed{2});
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 3"})) << "the ranks are numbered anew";
  EXPECT_EQ(why_, "");
  EXPECT_EQ(state_->epoch(), 1u);
  form(3, {1, 3});
  receive(3, Entered{3});
  EXPECT_EQ(told_, (Texts{"1: Entered 3", "3: Entered 3"}));
  EXPECT_EQ(state_->epoch(), 3u);
  tick(kTimeoutUs);
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, SilentMembersAreLost) {
  start(3);
  for (const uint32_t peer : {1, 3}) receive(peer, Heartbeat{}, kTimeoutUs / 2);
  tick_only(kTimeoutUs / 2);
  tick_only(kTimeoutUs - 1);
  EXPECT_EQ(told_, Texts{});
  tick_only(kTimeoutUs);
  EXPECT_EQ(told_, (Texts{"2: Lost: worker 2 (host h, pid 102) has been silent for 8 s", "2: closed",
                          "1: Form 2 of 1: 1 3"}));
  receive(2, Formed{1}, kTimeoutUs);
  EXPECT_EQ(state_->num_active(), 2u) << "it has been lost";
}

TEST_F(CoordinatorStateTest, NobodyIsLostBecauseTheCoordinatorStoodStill) {
  start(3);
  tick_only(10 * kTimeoutUs);
  EXPECT_EQ(told_, Texts{}) << "their messages have not been read yet";
  for (const uint32_t peer : {1, 3}) receive(peer, Heartbeat{}, 10 * kTimeoutUs);
  tick_only(10 * kTimeoutUs + kTimeoutUs / 4);
  EXPECT_EQ(told_, Texts{});
  tick_only(10 * kTimeoutUs + kTimeoutUs / 2);
  EXPECT_EQ(told_.back(), "1: Form 2 of 1: 1 3");
}

TEST_F(CoordinatorStateTest, RankZeroMayBeLost) {
  start(3);
  close(1);
  EXPECT_EQ(told_, (Texts{"2: Form 2 of 1: 2 3"}));
  form(2, {2, 3});
  EXPECT_EQ(told_, (Texts{"2: Form 3 of 3: 2 3"}));
}

TEST_F(CoordinatorStateTest, RankZeroMayBeLostWhileItHosts) {
  start(3);
  close(3);
  close(1);
  EXPECT_EQ(told_, (Texts{"2: Form 3 of 1: 2"})) << "no other member knows of generation 2";
  start(3);
  enrol(4);
  tick(kGatherUs);
  receive(1, Hosting{2, "ip:1"}, kGatherUs);
  close(1, kGatherUs);
  EXPECT_EQ(told_, (Texts{"2: Cancelled 2", "3: Cancelled 2", "4: Cancelled 2", "2: Form 3 of 1: 2 3"}));
}

TEST_F(CoordinatorStateTest, OthersMayBeLostDuringARecovery) {
  start(4);
  close(1);
  receive(2, Hosting{2, "ip:1"});
  receive(3, Formed{2});
  close(4);
  EXPECT_EQ(told_, (Texts{"2: Form 3 of 1: 2 3"}));
  receive(2, Formed{2});
  receive(2, Broken{2, "gone"});
  EXPECT_EQ(told_, Texts{}) << "of a generation that nobody forms any more";
  receive(2, Hosting{2, "ip:1"});
  EXPECT_EQ(told_, Texts{});
  form(3, {2, 3});
  EXPECT_EQ(told_, (Texts{"2: Form 4 of 4: 2 3"}));
}

TEST_F(CoordinatorStateTest, NewcomersWaitDuringARecovery) {
  start(3);
  close(1);
  enrol(4);
  tick(kGatherUs);
  EXPECT_EQ(told_, Texts{});
  form(2, {2, 3}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"2: Form 3 of 3: 2 3 4"}));
}

TEST_F(CoordinatorStateTest, TheJobFailsWhenNobodyIsLeftThatHasTheState) {
  start(2);
  enrol(3);
  close(1);
  close(2);
  const std::string why =
      "no worker is left that has the state of the training; the last one: worker 2 (host h, pid 102) ended "
      "without leaving (end of file)";
  EXPECT_EQ(told_, (Texts{"3: Lost: " + why, "3: closed"}));
  expect_failed(StatusCode::kUnavailable, why);
  enrol(4);
  EXPECT_EQ(told_, (Texts{"4: Lost: " + why, "4: closed"}));
}

// Losses at the very time when a generation is entered: one member has agreed to enter it, and says so
// after it was cancelled.

TEST_F(CoordinatorStateTest, AGenerationThatWasCancelledIsEnteredIfAMemberHasDoneSo) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  form(2, {1, 2, 3}, kGatherUs);
  close(3, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 2", "2: Cancelled 2"}));
  enrol(4, kGatherUs);
  tick(2 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 2 4"}));
  receive(2, Entered{2}, 2 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 3", "2: Cancelled 3", "4: Cancelled 3", "1: Entered 2",
                          "2: Entered 2", "1: Form 4 of 2: 1 2"}))
      << "member 1 may have no node of generation 2 any more";
  EXPECT_EQ(why_, "a worker was lost when the generation began");
  EXPECT_EQ(state_->epoch(), 2u);
  receive(1, Entered{2}, 2 * kGatherUs);
  receive(1, Broken{2, "it had been cancelled"}, 2 * kGatherUs);
  EXPECT_EQ(told_, Texts{});
  form(4, {1, 2}, 2 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 5 of 5: 1 2 4"}));
}

TEST_F(CoordinatorStateTest, AMemberThatHasEnteredCrossesARecoveryOfTheOldEpoch) {
  start(3);
  enrol(4);
  tick(kGatherUs);
  form(2, {1, 2, 3, 4}, kGatherUs);
  close(3, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 2", "2: Cancelled 2", "4: Cancelled 2", "1: Form 3 of 1: 1 2"}));
  receive(1, Hosting{3, "ip:1"}, kGatherUs);
  receive(2, Entered{2}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Entered 2", "2: Entered 2", "4: Entered 2", "1: Form 4 of 2: 1 2 4"}));
  EXPECT_EQ(state_->epoch(), 2u);
  EXPECT_EQ(state_->num_active(), 3u);
  receive(1, Formed{3}, kGatherUs);
  EXPECT_EQ(told_, Texts{});
  form(4, {1, 2, 4}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 5 of 5: 1 2 4"}));
}

TEST_F(CoordinatorStateTest, TheOnlyOneThatHasEnteredMayBeLostAsWell) {
  start(3);
  enrol(4);
  tick(kGatherUs);
  form(2, {1, 2, 3, 4}, kGatherUs);
  receive(3, Entered{2}, kGatherUs);
  close(3, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 2: 1 2 4"})) << "all have been told to enter";
}

// Generations that break although all members are there

TEST_F(CoordinatorStateTest, ABrokenGenerationRecoversLaterIfNobodyIsLost) {
  start(2);
  receive(1, Broken{1, "a reset"}, 5);
  EXPECT_EQ(told_, Texts{}) << "a loss would be the better reason";
  EXPECT_EQ(state_->next_tick_us(), kBlameUs);
  tick(kBlameUs);
  receive(2, Broken{1, "another"}, kBlameUs);
  EXPECT_EQ(state_->next_tick_us(), 5 + kBlameUs) << "the first one counts";
  tick(5 + kBlameUs);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 2"}));
  EXPECT_EQ(why_, "a reset");
  receive(2, Broken{1, "late"}, 5 + kBlameUs);
  tick(5 + 3 * kBlameUs);
  EXPECT_EQ(told_, Texts{});
  form(2, {1, 2}, 5 + 3 * kBlameUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 2"}));
}

TEST_F(CoordinatorStateTest, ALossComesBeforeTheRecoveryOfABrokenGeneration) {
  start(3);
  receive(1, Broken{1, "a reset"});
  close(3, kBlameUs / 2);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 1: 1 2"}));
  tick(2 * kBlameUs);
  EXPECT_EQ(told_, Texts{}) << "it has recovered already";
}

TEST_F(CoordinatorStateTest, ABrokenGenerationThatIsLeftNeedsNoRecovery) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  form(2, {1, 2, 3}, kGatherUs);
  receive(1, Broken{1, "the others have entered another one"}, kGatherUs);
  receive(2, Entered{2}, kGatherUs);
  tick(kGatherUs + 2 * kBlameUs);
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, FailsAfterThreeRecoveriesWithoutALoss) {
  start(2);
  TimeUs now = 0;
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    receive(1, Broken{generation, "a reset"}, now);
    tick(now += kBlameUs);
    EXPECT_EQ(told_, (Texts{"1: Form " + std::to_string(generation + 1) + " of 1: 1 2"}));
  }
  enrol(3, now);
  close(3, now);  // a newcomer does not matter
  receive(1, Broken{4, "a reset"}, now);
  tick(now + kBlameUs);
  EXPECT_EQ(told_.front(), "1: Lost: all workers are there, but they cannot work together: a reset");
  expect_failed(StatusCode::kUnavailable, "all workers are there, but they cannot work together: a reset");
}

TEST_F(CoordinatorStateTest, ALossOrAnEpochBeginsThatCountAnew) {
  start(4);
  TimeUs now = 0;
  uint32_t generation = 1;
  const auto break_thrice = [&] {
    for (int i = 0; i < 3; ++i) {
      receive(1, Broken{generation, "a reset"}, now);
      tick(now += kBlameUs);
      ++generation;
    }
  };
  break_thrice();
  close(4, now);
  ++generation;
  break_thrice();
  form(generation, {1, 2, 3}, now);
  form(++generation, {1, 2, 3}, now);
  receive(1, Entered{generation}, now);
  break_thrice();
  EXPECT_FALSE(state_->has_ended());
  receive(1, Broken{generation, "a reset"}, now);
  tick(now + kBlameUs);
  EXPECT_TRUE(state_->has_ended());
}

TEST_F(CoordinatorStateTest, APlannedGenerationThatBreaksIsPlannedAgainLater) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  receive(1, Hosting{2, "ip:1"}, kGatherUs);
  enrol(4, kGatherUs);
  receive(4, Broken{2, "it is not in it"}, kGatherUs);
  EXPECT_EQ(told_, Texts{});
  receive(3, Broken{2, "no route"}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 2", "2: Cancelled 2", "3: Cancelled 2"}));
  EXPECT_EQ(state_->epoch(), 1u);
  tick(kGatherUs + kBlameUs - 1);
  EXPECT_EQ(told_, Texts{});
  tick(kGatherUs + kBlameUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 3: 1 2 3 4"}));
  receive(1, Broken{2, "late"}, kGatherUs + kBlameUs);
  EXPECT_EQ(told_, Texts{});
}

}  // namespace
}  // namespace byteps::protocol
