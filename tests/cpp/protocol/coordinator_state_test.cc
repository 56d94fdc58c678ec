// CoordinatorState: how a job starts, and workers that come to it.
#include "protocol/coordinator_harness.h"

namespace byteps::protocol {
namespace {

// The start

TEST_F(CoordinatorStateTest, StartsWhenTheInitialWorkersHaveCome) {
  enrol(1);
  EXPECT_EQ(told_, (Texts{"1: Enrolled 1"}));
  EXPECT_EQ(state_->num_waiting(), 1u);
  enrol(2);
  EXPECT_EQ(told_, (Texts{"2: Enrolled 2", "1: Form 1 of 1: 1 2"})) << "rank 0 first: it runs the scheduler";
  receive(1, Hosting{1, "ip:7"});
  EXPECT_EQ(told_, (Texts{"2: Form 1 of 1: 1 2 at ip:7"}));
  receive(2, Formed{1});
  EXPECT_EQ(told_, Texts{});
  EXPECT_EQ(state_->epoch(), 0u);
  receive(1, Formed{1});
  EXPECT_EQ(told_, (Texts{"1: Entered 1", "2: Entered 1"}));
  EXPECT_EQ(state_->epoch(), 1u);
  EXPECT_EQ(state_->num_active(), 2u);
  EXPECT_EQ(state_->num_waiting(), 0u);
  receive(1, Entered{1});
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, StartsWithFewerAtTheDeadline) {
  options_.initial_workers = 4;
  options_.min_workers = 2;
  create(options_);
  enrol(1);
  enrol(2);
  tick(kStartUs - 1);
  EXPECT_EQ(told_, Texts{});
  EXPECT_EQ(state_->next_tick_us(), kStartUs);
  tick(kStartUs);
  EXPECT_EQ(told_, (Texts{"1: Form 1 of 1: 1 2"}));
}

TEST_F(CoordinatorStateTest, FailsAtTheDeadlineIfTooFewHaveCome) {
  options_.initial_workers = 4;
  options_.min_workers = 2;
  create(options_);
  enrol(1);
  tick(kStartUs);
  const std::string why = "expected at least 2 workers within 30 s, got 1";
  EXPECT_EQ(told_, (Texts{"1: Lost: " + why, "1: closed"}));
  expect_failed(StatusCode::kDeadlineExceeded, why);
}

TEST_F(CoordinatorStateTest, FailsAtTheDeadlineIfNobodyHasCome) {
  options_.min_workers = 0;
  create(options_);
  tick(kStartUs);
  expect_failed(StatusCode::kDeadlineExceeded, "expected at least 1 workers within 30 s, got 0");
}

TEST_F(CoordinatorStateTest, TheDeadlineIsNothingToAGenerationThatIsBeingFormed) {
  enrol(1);
  enrol(2);
  tick(kStartUs);
  EXPECT_FALSE(state_->has_ended());
  close(2, kStartUs + 1);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 1", "1: Form 2 of 2: 1"}))
      << "the job starts with those that are there";
}

TEST_F(CoordinatorStateTest, FewerThanTheLeastAfterTheDeadlineFailAtOnce) {
  options_.min_workers = 2;
  create(options_);
  enrol(1);
  enrol(2);
  tick(kStartUs);
  close(2, kStartUs + 1);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 1"}));
  EXPECT_LE(state_->next_tick_us(), kStartUs + 1);
  tick(kStartUs + 1);
  EXPECT_TRUE(state_->has_ended());
}

TEST_F(CoordinatorStateTest, ALossBeforeTheStartIsMadeUpByOthers) {
  enrol(1);
  enrol(2);
  close(1);
  EXPECT_EQ(told_, (Texts{"2: Cancelled 1"}));
  enrol(3);
  EXPECT_EQ(told_, (Texts{"3: Enrolled 3", "2: Form 2 of 2: 2 3"})) << "no number is used twice";
  form(2, {2, 3});
  EXPECT_EQ(state_->epoch(), 2u);
}

// It could be tried for ever, as nobody is lost.
TEST_F(CoordinatorStateTest, AFirstGenerationThatBreaksIsTriedAgainThreeTimes) {
  enrol(1);
  enrol(2);
  TimeUs now = kStartUs - kBlameUs;
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    receive(2, Broken{generation, "no route"}, now);
    EXPECT_EQ(told_, (Texts{"1: Cancelled " + std::to_string(generation),
                            "2: Cancelled " + std::to_string(generation)}));
    tick(now + kBlameUs - 1);
    EXPECT_EQ(told_, Texts{}) << "also after the deadline of the start";
    tick(now += kBlameUs);
    const std::string next = std::to_string(generation + 1);
    EXPECT_EQ(told_, (Texts{"1: Form " + next + " of " + next + ": 1 2"}));
  }
  receive(2, Broken{4, "no route"}, now);
  expect_failed(StatusCode::kUnavailable, "all workers are there, but they cannot work together: no route");
}

TEST_F(CoordinatorStateTest, RefusesOtherVersions) {
  receive(1, Enrol{.pid = 7, .host = "node3", .version = "2"});
  EXPECT_EQ(told_,
            (Texts{"1: Lost: a worker (host node3, pid 7) has byteps 2, the coordinator 1: install the "
                   "same everywhere",
                   "1: closed"}));
  EXPECT_EQ(state_->num_waiting(), 0u);
  enrol(2);
  EXPECT_EQ(told_, (Texts{"2: Enrolled 1"}));
}

TEST_F(CoordinatorStateTest, RefusesPeersThatDoNotEnrol) {
  receive(1, Join{});
  EXPECT_EQ(told_,
            (Texts{"1: Lost: expected an Enrol: this is the coordinator of an elastic job", "1: closed"}));
  close(1);
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, AnswersHeartbeats) {
  enrol(1);
  receive(1, Heartbeat{});
  EXPECT_EQ(told_, (Texts{"1: Heartbeat"}));
}

TEST_F(CoordinatorStateTest, OnlyRankZeroHostsAndOnlyOnce) {
  enrol(1);
  enrol(2);
  receive(2, Hosting{1, "ip:2"});
  EXPECT_EQ(told_, Texts{});
  receive(1, Hosting{7, "ip:2"});
  EXPECT_EQ(told_, Texts{});
  receive(1, Hosting{1, "ip:1"});
  EXPECT_EQ(told_, (Texts{"2: Form 1 of 1: 1 2 at ip:1"}));
  receive(1, Hosting{1, "ip:3"});
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, MembersThatBreakTheProtocolAreLost) {
  const Control wrong[] = {Enrol{.pid = 1, .host = "h", .version = "1"},
                           Join{},
                           Enrolled{1, 1},
                           Form{1, 1, {1}, "", ""},
                           Cancelled{1},
                           Missing{1},
                           Lost{},
                           Leave{}};
  for (const Control& message : wrong) {
    start(3);
    receive(2, message);
    EXPECT_EQ(told_, (Texts{"2: Lost: worker 2 (host h, pid 102) sent a message that members do not send",
                            "2: closed", "1: Form 2 of 1: 1 3"}));
    close(2);
    EXPECT_EQ(told_, Texts{});
  }
  start(3);
  close(2);
  receive(1, Hosting{2, ""});
  EXPECT_EQ(told_, (Texts{"1: Lost: worker 1 (host h, pid 101) runs a scheduler, but did not say where",
                          "1: closed", "3: Form 3 of 1: 3"}));
}

// Those that come

TEST_F(CoordinatorStateTest, NewcomersThatComeTogetherEnterTogether) {
  start(2);
  enrol(3, 0);
  EXPECT_EQ(told_, (Texts{"3: Enrolled 3"}));
  EXPECT_EQ(state_->next_tick_us(), kGatherUs);
  enrol(4, kGatherUs / 2);
  tick(kGatherUs);
  EXPECT_EQ(told_, Texts{}) << "perhaps a third one comes";
  EXPECT_EQ(state_->next_tick_us(), 3 * kGatherUs / 2);
  tick(3 * kGatherUs / 2);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 2: 1 2 3 4"}));
  receive(1, Hosting{2, "ip:9"});
  EXPECT_EQ(told_, (Texts{"2: Form 2 of 2: 1 2 3 4 at ip:9", "3: Form 2 of 2: 1 2 3 4 at ip:9",
                          "4: Form 2 of 2: 1 2 3 4 at ip:9"}));
  for (uint32_t member = 1; member <= 4; ++member) receive(member, Formed{2});
  EXPECT_EQ(told_, Texts{}) << "the members agree when they enter";
  EXPECT_EQ(state_->epoch(), 1u);
  EXPECT_EQ(state_->num_active(), 2u);
  receive(2, Entered{2});
  EXPECT_EQ(told_, (Texts{"1: Entered 2", "2: Entered 2", "3: Entered 2", "4: Entered 2"}));
  EXPECT_EQ(state_->epoch(), 2u);
  EXPECT_EQ(state_->num_active(), 4u);
  for (const uint32_t member : {1, 3, 4}) {
    receive(member, Entered{2});
    EXPECT_EQ(told_, Texts{});
  }
}

TEST_F(CoordinatorStateTest, NewcomersThatComeLaterWaitForTheNextGeneration) {
  start(1);
  enrol(2);
  tick(kGatherUs);
  enrol(3, kGatherUs);
  tick(3 * kGatherUs);
  EXPECT_EQ(told_, Texts{});
  form(2, {1, 2}, 3 * kGatherUs);
  receive(1, Entered{2}, 3 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Entered 2", "2: Entered 2", "1: Form 3 of 3: 1 2 3"}));
}

TEST_F(CoordinatorStateTest, SurvivorsKeepTheirOrderAndNewcomersFollow) {
  start(4);
  enrol(5);
  close(1);
  EXPECT_EQ(told_, (Texts{"2: Form 2 of 1: 2 3 4"}));
  form(2, {2, 3, 4}, kGatherUs);
  EXPECT_EQ(told_, (Texts{"2: Form 3 of 3: 2 3 4 5"}));
  form(3, {2, 3, 4, 5}, kGatherUs);
  receive(4, Entered{3}, kGatherUs);
  enrol(6, kGatherUs);
  close(3, kGatherUs);
  form(4, {2, 4, 5}, 2 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"2: Form 5 of 5: 2 4 5 6"}));
}

TEST_F(CoordinatorStateTest, NewcomersAboveTheMostWaitUntilOthersAreLost) {
  options_.max_workers = 3;
  start(2);
  enrol(3);
  enrol(4);
  tick(kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 2 of 2: 1 2 3"}));
  form(2, {1, 2, 3}, kGatherUs);
  receive(1, Entered{2}, kGatherUs);
  tick(3 * kGatherUs);
  EXPECT_EQ(told_, Texts{});
  EXPECT_EQ(state_->num_waiting(), 1u);
  close(2, 3 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 3 of 2: 1 3"}));
  form(3, {1, 3}, 3 * kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Form 4 of 4: 1 3 4"}));
}

TEST_F(CoordinatorStateTest, TheFirstGenerationHasNoMoreThanTheMost) {
  options_.initial_workers = 3;
  options_.max_workers = 2;
  create(options_);
  for (uint32_t peer = 1; peer <= 3; ++peer) enrol(peer);
  EXPECT_EQ(told_, (Texts{"3: Enrolled 3", "1: Form 1 of 1: 1 2"}));
}

TEST_F(CoordinatorStateTest, ALostNewcomerIsForgotten) {
  start(2);
  enrol(3);
  close(3);
  EXPECT_EQ(told_, Texts{});
  tick(kGatherUs);
  EXPECT_EQ(told_, Texts{});
  EXPECT_EQ(state_->num_waiting(), 0u);
}

TEST_F(CoordinatorStateTest, ANewcomerThatIsLostWhileItsGenerationIsFormedCancelsIt) {
  start(2);
  enrol(3);
  enrol(4);
  tick(kGatherUs);
  receive(1, Hosting{2, "ip:1"});
  receive(4, Formed{2});
  close(3, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 2", "2: Cancelled 2", "4: Cancelled 2", "1: Form 3 of 3: 1 2 4"}));
  receive(1, Formed{2}, kGatherUs);
  EXPECT_EQ(told_, Texts{});
  form(3, {1, 2, 4}, kGatherUs);
  receive(1, Entered{3}, kGatherUs);
  EXPECT_EQ(state_->epoch(), 3u);
}

TEST_F(CoordinatorStateTest, TheOnlyNewcomerThatIsLostLeavesNothingToForm) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  close(3, kGatherUs);
  EXPECT_EQ(told_, (Texts{"1: Cancelled 2", "2: Cancelled 2"}));
  tick(2 * kGatherUs);
  EXPECT_EQ(told_, Texts{});
}

TEST_F(CoordinatorStateTest, OnlyMembersOfAGenerationEnterIt) {
  start(2);
  enrol(3);
  tick(kGatherUs);
  form(2, {1, 2, 3}, kGatherUs);
  enrol(4, kGatherUs);
  receive(4, Entered{2}, kGatherUs);
  EXPECT_EQ(told_, Texts{});
  receive(1, Entered{9}, kGatherUs);
  EXPECT_EQ(told_, Texts{}) << "nobody has planned this one";
  EXPECT_EQ(state_->epoch(), 1u);
}

}  // namespace
}  // namespace byteps::protocol
