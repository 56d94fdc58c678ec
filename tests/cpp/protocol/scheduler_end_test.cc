// How a job ends: in order, by a failure, by a suspicion.
#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(SchedulerStateTest, JobFinishesWhenAllWorkersHaveLeft) {
  start();
  receive(0, Leave{});
  close(0);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  receive(1, Leave{});
  EXPECT_EQ(state_.phase(), Phase::kFinished);
  EXPECT_EQ(first<Left>(), (Left{3, 1}));
  EXPECT_EQ(receivers<Finished>(), (Peers{1, 2}));
  close(1);
  close(2);
  EXPECT_EQ(state_.phase(), Phase::kFinished);
  EXPECT_TRUE(state_.failure().is_ok());
  EXPECT_EQ(state_.next_tick_us(), kNever);
}

TEST_F(SchedulerStateTest, ServerThatLeavesEarlyFailsTheJob) {
  start();
  receive(2, Leave{});
  expect_failed("server 0 (host h, pid 100) left while workers still use it", {0, 1, 2});
}

TEST_F(SchedulerStateTest, ANodeThatEndsByAnExceptionFailsTheJobOnceAndForAll) {
  start();
  receive(1, Leave{"KeyError: 'label'"});
  expect_failed("rank 1 (host h, pid 101) ended by KeyError: 'label'", {0, 1, 2});
  receive(0, Leave{"PeerLostError: rank 1 ended by KeyError"});
  close(1);
  EXPECT_EQ(state_.failure().message(), "rank 1 (host h, pid 101) ended by KeyError: 'label'");
}

TEST_F(SchedulerStateTest, AWaitingRankLearnsWhatTheOthersWaitFor) {
  start();
  receive(0, Waits{"push_pull of 'a'", false});
  EXPECT_TRUE(sent_.empty());
  receive(0, Waits{"push_pull of 'a'", true});
  EXPECT_EQ(receivers<Waiting>(), Peers{0});
  EXPECT_EQ(first<Waiting>().text, "push_pull of 'a': rank 1 (host h, pid 101) waits for nothing");
  receive(1, Waits{"push_pull of 'b'", true});
  EXPECT_EQ(first<Waiting>().text, "push_pull of 'b': rank 0 (host h, pid 100) waits for push_pull of 'a'");
  receive(1, Waits{"push_pull of 'a'", true});
  EXPECT_EQ(first<Waiting>().text, "push_pull of 'a': all ranks wait for it");
  receive(1, Waits{});
  EXPECT_TRUE(sent_.empty());
}

TEST_F(SchedulerStateTest, AllLearnAfterWhichExceptionARankLeavesAndTheJobGoesOn) {
  start();
  receive(1, Leaving{1, "KeyError: 'label'"});
  EXPECT_EQ(receivers<Leaving>(), (Peers{0, 2}));
  EXPECT_EQ(first<Leaving>(), (Leaving{1, "KeyError: 'label'"}));
  receive(2, Leaving{1, ""});
  EXPECT_EQ(receivers<Leaving>(), Peers{}) << "rank 0 may not know yet";
  receive(0, Leaving{1, ""});
  EXPECT_EQ(receivers<Leaving>(), Peers{1});
  receive(0, Leaving{1, ""});
  EXPECT_TRUE(sent_.empty()) << "once";
  receive(1, Leave{});
  receive(0, Leaving{0, "late"});
  EXPECT_EQ(receivers<Leaving>(), Peers{2}) << "rank 1 is gone";
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, ALeavingRankNeedNotBeToldOfOthersThatLeave) {
  start();
  receive(1, Leaving{1, "KeyError: 'label'"});
  receive(2, Leaving{1, ""});
  receive(0, Leave{});
  EXPECT_EQ(receivers<Leaving>(), Peers{1});
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, AServiceThatWaitsLearnsTheNameOfTheTensor) {
  start();
  receive(0, Declare{"v", DType::kFloat32, 8});
  receive(0, Declare{"w", DType::kFloat32, 8});
  receive(2, Stalled{2, "", "round 3 of partition 0 has waited 30 s for rank 1 (b)"});
  EXPECT_EQ(receivers<Stalled>(), Peers{2});
  EXPECT_EQ(first<Stalled>().describe(), "tensor 'w': round 3 of partition 0 has waited 30 s for rank 1 (b)");
  for (const uint32_t unknown : {0, 3}) {
    receive(1, Stalled{unknown, "guess", "so long"});
    EXPECT_EQ(first<Stalled>().describe(), "tensor number " + std::to_string(unknown) + ": so long");
  }
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, SuspicionWaitsForTheSuspectsOwnFate) {
  start();
  receive(0, Suspect{2, "reset"}, 5);
  receive(0, Suspect{2, "reset"}, 6);
  tick(5);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  close(2);
  expect_failed("server 0 (host h, pid 100) ended without leaving: end of file", {0, 1});
}

TEST_F(SchedulerStateTest, BrokenConnectionBetweenLivingNodesFailsTheJob) {
  start();
  receive(0, Suspect{2, "reset"}, 5);
  for (PeerId peer : {0, 1, 2}) receive(peer, Heartbeat{}, kTimeoutUs);
  EXPECT_EQ(state_.next_tick_us(), 5 + kTimeoutUs / 4);
  tick(kTimeoutUs);
  expect_failed("rank 0 (host h, pid 100) lost its connection to server 0 (host h, pid 100): reset",
                {0, 1, 2});
}

TEST_F(SchedulerStateTest, ASuspectThatIsSilentIsToBlameForThat) {
  start();
  const TimeUs reported_us = kTimeoutUs * 3 / 4;
  receive(1, Heartbeat{}, reported_us);
  receive(0, Suspect{2, "no sign of life"}, reported_us);
  receive(0, Heartbeat{}, reported_us + kTimeoutUs / 8);
  tick(kTimeoutUs - 1);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  tick(kTimeoutUs);
  expect_failed("server 0 (host h, pid 100) has been silent for 10 s", {0, 1, 2});
}

TEST_F(SchedulerStateTest, AReporterThatIsSilentSinceThenIsToBlame) {
  start();
  receive(0, Suspect{2, "no sign of life"}, 5);
  for (TimeUs at_us = 10; at_us < kTimeoutUs; at_us += kTimeoutUs / 4) {
    receive(1, Heartbeat{}, at_us);
    receive(2, Heartbeat{}, at_us);
  }
  tick(kTimeoutUs);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  tick(5 + kTimeoutUs);
  expect_failed("rank 0 (host h, pid 100) has been silent for 10 s", {0, 1, 2});
}

TEST_F(SchedulerStateTest, ANodeThatReportsAHangFailsTheJobAtOnce) {
  start();
  receive(1, Suspect{1, "its data loop bps-data-0 hangs"}, 5);
  expect_failed("rank 1 (host h, pid 101): its data loop bps-data-0 hangs", {0, 1, 2});
}

TEST_F(SchedulerStateTest, AVerdictHasWhatBothEndsSaw) {
  start();
  receive(0, Suspect{2, "closed by the other end"}, 5);
  receive(1, Suspect{2, "of another connection"}, 6);
  receive(2, Suspect{0, "the card gave up"}, 7);
  for (PeerId peer : {0, 1, 2}) receive(peer, Heartbeat{}, kTimeoutUs);
  tick(5 + kTimeoutUs);
  expect_failed(
      "rank 0 (host h, pid 100) lost its connection to server 0 (host h, pid 100): closed by the other end; "
      "at the other end: the card gave up",
      {0, 1, 2});
}

TEST_F(SchedulerStateTest, SchedulerThatLeavesPassesTheVerdictThatASuspicionWaitsFor) {
  start();
  receive(1, Suspect{2, "reset"}, 5);
  receive(0, Leave{}, 6);
  shutdown();
  expect_failed("rank 1 (host h, pid 101) lost its connection to server 0 (host h, pid 100): reset",
                {0, 1, 2});
}

TEST_F(SchedulerStateTest, SuspicionEndsWithALeaveOnEitherSide) {
  for (const PeerId leaver : {0, 1}) {
    SchedulerState fresh({.num_workers = 2,
                          .start_timeout_us = kStartUs,
                          .timeout_us = kTimeoutUs,
                          .op_timeout_us = kOpUs,
                          .partition_bytes = 4096},
                         0);
    SchedulerActions actions;
    fresh.on_message(0, join_of(Role::kWorker, 0), 0, actions);
    fresh.on_message(1, join_of(Role::kWorker, 1), 0, actions);
    fresh.on_message(0, Suspect{1, "reset"}, 0, actions);
    fresh.on_message(leaver, Leave{}, 0, actions);
    if (leaver == 1) fresh.on_message(0, Suspect{1, "reset"}, 0, actions);
    fresh.on_message(1 - leaver, Heartbeat{}, kTimeoutUs, actions);
    fresh.on_tick(kTimeoutUs, actions);
    EXPECT_EQ(fresh.phase(), Phase::kRunning) << fresh.failure();
  }
}

TEST_F(SchedulerStateTest, MembersWhoBreakTheProtocolFailTheJob) {
  struct Case {
    PeerId peer;
    Control message;
    const char* says;
  };
  const Case cases[] = {
      {0, Roster{},
       "rank 0 (host h, pid 100) broke the protocol: sent a message that nodes of its role must not send"},
      {0, Placed{}, "must not send"},
      {0, Lost{}, "must not send"},
      {0, Finished{}, "must not send"},
      {0, BarrierDone{}, "must not send"},
      {2, Declare{}, "server 0 (host h, pid 100) broke the protocol"},
      {2, Barrier{1}, "server 0 (host h, pid 100) broke the protocol"},
      {1, Suspect{3, ""}, "suspects a node that does not exist"},
      {1, Barrier{2}, "barrier 2 after barrier 0"},
      {1, Join{}, "joined a second time"},
  };
  for (const Case& c : cases) {
    state_ = SchedulerState({.num_workers = 2,
                             .num_servers = 1,
                             .start_timeout_us = kStartUs,
                             .timeout_us = kTimeoutUs,
                             .op_timeout_us = kOpUs,
                             .partition_bytes = 4096},
                            0);
    start();
    receive(c.peer, c.message);
    EXPECT_EQ(state_.phase(), Phase::kFailed) << c.says;
    EXPECT_EQ(state_.failure().code(), StatusCode::kDataLoss);
    EXPECT_NE(state_.failure().message().find(c.says), std::string::npos) << state_.failure();
    EXPECT_EQ(receivers<Lost>(), (Peers{0, 1, 2})) << "the culprit is told, too";
    EXPECT_EQ(closed_, Peers{c.peer});
  }
}

TEST_F(SchedulerStateTest, OrderlyEndOfTheSchedulerIsToldToAll) {
  start();
  shutdown();
  EXPECT_EQ(state_.phase(), Phase::kFinished);
  EXPECT_EQ(receivers<Finished>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Finished>().text, "rank 0 has left");
  close(1);
  shutdown();
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(state_.phase(), Phase::kFinished);
}

TEST_F(SchedulerStateTest, ANodeThatHasLeftAndComesBackIsForTheNextJob) {
  start();
  receive(1, Leave{});
  receive(7, join_of(Role::kWorker, 1));
  EXPECT_EQ(receivers<Finished>(), Peers{7});
  EXPECT_EQ(closed_, Peers{7});
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  receive(8, join_of(Role::kWorker, 0));
  EXPECT_EQ(receivers<Lost>(), Peers{8}) << "rank 0 is there";
  shutdown();
  receive(9, join_of(Role::kWorker, 0));
  EXPECT_EQ(receivers<Finished>(), Peers{9});
}

// A scheduler that numbers the ranks does not get their numbers when they come back.
TEST_F(SchedulerStateTest, AProcessThatHasLeftAndComesBackWithoutARankIsForTheNextJob) {
  start();
  receive(1, Leave{});
  Join again = join_of(Role::kWorker, 1);
  again.self.rank = -1;
  receive(7, again);
  EXPECT_EQ(receivers<Finished>(), Peers{7});
  again.self.pid += 1;
  receive(8, again);
  EXPECT_EQ(receivers<Lost>(), Peers{8}) << "another process";
}

TEST_F(SchedulerStateTest, SchedulerThatEndsBeforeTheStartFailsTheJob) {
  receive(0, join_of(Role::kWorker, 0));
  shutdown();
  EXPECT_EQ(state_.phase(), Phase::kFailed);
  EXPECT_EQ(first<Lost>().text, "the job has not started: rank 0 has left");
}

TEST_F(SchedulerStateTest, ShutdownAfterAFailureChangesNothing) {
  start();
  close(1);
  shutdown();
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

}  // namespace
}  // namespace byteps::protocol
