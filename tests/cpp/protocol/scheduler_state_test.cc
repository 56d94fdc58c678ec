// How a job starts, and requests to the scheduler while it runs.
#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(SchedulerStateTest, SendsTheRosterWhenAllHaveJoined) {
  receive(7, join_of(Role::kServer, -1));
  EXPECT_EQ(receivers<Heartbeat>(), (Peers{7}));
  receive(8, join_of(Role::kWorker, 1));
  EXPECT_EQ(receivers<Heartbeat>(), (Peers{8}));
  EXPECT_TRUE(receivers<Roster>().empty());
  receive(9, join_of(Role::kWorker, 0));
  ASSERT_EQ(receivers<Roster>(), (Peers{7, 8, 9}));
  for (const SendTo& send : sent_) {
    if (!std::holds_alternative<Roster>(send.message)) continue;
    const auto& roster = std::get<Roster>(send.message);
    EXPECT_EQ(roster.epoch, 1u);
    EXPECT_EQ(roster.num_workers, 2u);
    EXPECT_EQ(roster.timeout_us, static_cast<uint64_t>(kTimeoutUs));
    ASSERT_EQ(roster.nodes.size(), 3u);
    EXPECT_EQ(roster.self, send.peer == 9 ? 0u : send.peer == 8 ? 1u : 2u);
    EXPECT_EQ(roster.nodes[2].role, Role::kServer);
    EXPECT_EQ(roster.nodes[2].rank, 0);
    const EncodedControl encoded = encode(roster);
    EXPECT_TRUE(decode_control(encoded.head, encoded.payload).is_ok());
  }
}

TEST_F(SchedulerStateTest, StartDeadlineNamesMissingAndJoinedNodes) {
  receive(1, join_of(Role::kWorker, 1, "b"));
  EXPECT_EQ(state_.next_tick_us(), 5'000'000);
  tick(5'000'000);
  EXPECT_EQ(receivers<Waiting>(), Peers{1});
  EXPECT_EQ(
      first<Waiting>().text,
      "the job has not started after 5 s: rank 0 and 1 server missing; joined: rank 1 (host b, pid 101)");
  EXPECT_EQ(state_.next_tick_us(), kStartUs);
  tick(kStartUs - 1);
  EXPECT_TRUE(sent_.empty()) << "repeated only after 30 s";
  EXPECT_EQ(state_.phase(), Phase::kJoining);
  tick(kStartUs);
  expect_failed(
      "the job has not started within 30 s: rank 0 and 1 server missing; joined: rank 1 (host b, pid 101)",
      {1});
  EXPECT_EQ(state_.failure().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(SchedulerStateTest, ARefusedCallerIsNamedAtTheDeadline) {
  state_.on_refused("10.0.0.2", permission_denied("it has another secret"), 5);
  tick(kStartUs);
  EXPECT_EQ(
      state_.failure().message(),
      "the job has not started within 30 s: 2 workers and 1 server missing; joined: nobody; 10.0.0.2 was "
      "refused: it has another secret");
}

TEST(SchedulerStateRefusals, EndAJobThatStaysIncomplete) {
  SchedulerState state({.num_workers = 2, .start_timeout_us = kStartUs, .refusal_timeout_us = 1000}, 0);
  SchedulerActions actions;
  state.on_refused("10.0.0.2", permission_denied("it has another secret"), 500);
  state.on_refused("10.0.0.2", permission_denied("it has another secret"), 1400);
  EXPECT_EQ(state.next_tick_us(), 1500);
  state.on_message(1, join_of(Role::kWorker, 0), 1490, actions);  // others are only late
  EXPECT_EQ(state.next_tick_us(), 2490);
  state.on_tick(2489, actions);
  EXPECT_EQ(state.phase(), Phase::kJoining);
  state.on_tick(2490, actions);
  EXPECT_EQ(state.failure().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(
      state.failure().message(),
      "the job cannot start: rank 1 missing; joined: rank 0 (host h, pid 100); 10.0.0.2 was refused: it has "
      "another secret");
}

TEST(SchedulerStateRefusals, AreNothingToAJobThatRuns) {
  SchedulerState state({.num_workers = 1, .start_timeout_us = kStartUs, .refusal_timeout_us = 1000}, 0);
  SchedulerActions actions;
  state.on_refused("10.0.0.2", permission_denied("it has another secret"), 500);
  state.on_message(1, join_of(Role::kWorker, 0), 501, actions);
  state.on_refused("10.0.0.2", permission_denied("it has another secret"), 502);
  state.on_message(1, Heartbeat{}, 100'000, actions);
  EXPECT_EQ(state.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, ANodeThatDoesNotFitFailsTheJobAtOnce) {
  receive(0, join_of(Role::kWorker, 0, "a"));
  receive(1, join_of(Role::kWorker, 0, "b"));
  expect_failed("rank 0 (host b, pid 100): its number is taken by rank 0 (host a, pid 100)", {0, 1});
  EXPECT_EQ(closed_, Peers{1});
}

TEST_F(SchedulerStateTest, WeightsThatDoNotFitTheRosterFailTheJob) {
  SchedulerState state({.num_workers = 1,
                        .start_timeout_us = kStartUs,
                        .timeout_us = kTimeoutUs,
                        .op_timeout_us = kOpUs,
                        .partition_bytes = 4096,
                        .placement = {.kind = PlacementPolicy::Kind::kWeights, .weights = {1, 2}}},
                       0);
  SchedulerActions actions;
  state.on_message(0, join_of(Role::kWorker, 0), 0, actions);
  EXPECT_EQ(state.phase(), Phase::kFailed);
  EXPECT_EQ(state.failure().message(),
            "placement: expected 1 weights, for 1 worker machines and 0 servers, got 2");
}

TEST_F(SchedulerStateTest, SecondJoinOfAPeerFailsTheJob) {
  receive(0, join_of(Role::kWorker, 0));
  receive(0, join_of(Role::kWorker, 1));
  expect_failed("rank 0 (host h, pid 100) broke the protocol: joined a second time", {0});
  EXPECT_EQ(closed_, Peers{0});
}

TEST_F(SchedulerStateTest, NewcomersAreRefusedOnceTheJobRuns) {
  start();
  receive(9, join_of(Role::kWorker, 1));
  EXPECT_EQ(receivers<Lost>(), Peers{9});
  EXPECT_EQ(closed_, Peers{9});
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  close(1);
  receive(9, join_of(Role::kWorker, 1));
  EXPECT_EQ(receivers<Lost>(), Peers{9});
  EXPECT_EQ(first<Lost>().text, state_.failure().message());
}

TEST_F(SchedulerStateTest, StrangersWhoDoNotJoinAreDropped) {
  start();
  receive(9, Heartbeat{});
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(closed_, Peers{9});
  close(10);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, NothingButJoiningHappensBeforeTheStart) {
  receive(0, join_of(Role::kWorker, 0));
  receive(0, Declare{"w", DType::kFloat32, 4});
  expect_failed("rank 0 (host h, pid 100) broke the protocol: did not wait for the start of the job", {0});
}

TEST_F(SchedulerStateTest, NodeThatEndsWhileJoiningFailsTheJob) {
  receive(0, join_of(Role::kWorker, 0));
  receive(1, join_of(Role::kWorker, 1));
  close(1);
  expect_failed("rank 1 (host h, pid 101) ended before all had joined: end of file", {0});
}

TEST_F(SchedulerStateTest, NodeThatLeavesWhileJoiningFailsTheJob) {
  receive(0, join_of(Role::kWorker, 0));
  receive(1, join_of(Role::kWorker, 1));
  receive(1, Leave{});
  EXPECT_EQ(state_.failure().message(), "rank 1 (host h, pid 101) left before all had joined");
}

TEST_F(SchedulerStateTest, NodeThatEndsWithoutLeavingFailsTheJob) {
  start();
  close(2);
  expect_failed("server 0 (host h, pid 100) ended without leaving: end of file", {0, 1});
  close(1);
  EXPECT_TRUE(sent_.empty()) << "one failure is enough";
  receive(0, Barrier{1});
  EXPECT_TRUE(sent_.empty());
}

TEST_F(SchedulerStateTest, HeartbeatsAreAnsweredInEveryPhase) {
  receive(0, join_of(Role::kWorker, 0));
  receive(0, Heartbeat{});
  EXPECT_EQ(receivers<Heartbeat>(), Peers{0});
  receive(1, join_of(Role::kWorker, 1));
  receive(2, join_of(Role::kServer, 0));
  receive(0, Heartbeat{});
  EXPECT_EQ(receivers<Heartbeat>(), Peers{0});
}

TEST_F(SchedulerStateTest, SilentNodeFailsTheJobAndAnyMessageIsASignOfLife) {
  start();
  EXPECT_EQ(state_.next_tick_us(), kTimeoutUs);
  receive(0, Declare{"w", DType::kFloat32, 4}, kTimeoutUs - 1);
  receive(2, Heartbeat{}, kTimeoutUs - 1);
  tick(kTimeoutUs - 1);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  tick(kTimeoutUs);
  expect_failed("rank 1 (host h, pid 101) has been silent for 10 s", {0, 1, 2});
}

TEST_F(SchedulerStateTest, SilenceBeforeTheStartDoesNotCount) {
  receive(0, join_of(Role::kWorker, 0), 0);
  receive(1, join_of(Role::kWorker, 1), 0);
  tick(2 * kTimeoutUs);
  EXPECT_EQ(state_.phase(), Phase::kJoining);
  receive(2, join_of(Role::kServer, 0), 2 * kTimeoutUs);
  tick(3 * kTimeoutUs - 1);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, DeclarationsAreAnsweredToTheirSender) {
  start();
  receive(1, Declare{"w", DType::kFloat32, 8192});
  EXPECT_EQ(receivers<Placed>(), Peers{1});
  EXPECT_EQ(first<Placed>().locations, (std::vector<RootLocation>{{1, 0}, {1, 1}}))
      << "all roots on the server; the ranks of the machine serve in turn";
  const Placed placed = first<Placed>();
  receive(0, Declare{"w", DType::kFloat32, 8192});
  EXPECT_EQ(receivers<Placed>(), Peers{0});
  EXPECT_EQ(first<Placed>(), placed);
}

TEST_F(SchedulerStateTest, AFailedRoundIsToldToAllNodesOnce) {
  start();
  receive(1, Declare{"w", DType::kFloat32, 8});
  receive(0, RoundFailed{"w", 7, true, StatusCode::kInvalidArgument, "op is 'sum'"});
  EXPECT_EQ(receivers<Refused>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Refused>(),
            (Refused{"w", 1, StatusCode::kInvalidArgument, "rank 0 (host h, pid 100): op is 'sum'", 7}));
  receive(1, RoundFailed{"w", 7, false, StatusCode::kInvalidArgument, "as told"});
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, DisagreementAboutTheModeOfATensorNamesBothRanks) {
  start();
  receive(1, Declare{.name = "w", .bytes = 8, .mode = {true, 3}});
  receive(0, Declare{.name = "w", .bytes = 8, .mode = {true, kUnboundedStaleness}});
  EXPECT_EQ(receivers<Refused>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Refused>().text,
            "rank 1 (host h, pid 101) stores it with staleness 3, "
            "rank 0 (host h, pid 100) stores it with unbounded staleness");
}

TEST_F(SchedulerStateTest, BarrierEndsForAllAtOnce) {
  start();
  receive(1, Barrier{1});
  EXPECT_TRUE(sent_.empty());
  receive(0, Barrier{1});
  EXPECT_EQ(receivers<BarrierDone>(), (Peers{0, 1}));
  EXPECT_EQ(first<BarrierDone>(), (BarrierDone{1, StatusCode::kOk, ""}));
}

TEST_F(SchedulerStateTest, BarrierFailsWhenARankStaysAway) {
  start();
  receive(1, Barrier{1});
  for (TimeUs now = 0; now < kOpUs; now += kTimeoutUs / 2) {
    for (PeerId peer : {0, 1, 2}) receive(peer, Heartbeat{}, now);
    tick(now);
    ASSERT_TRUE(sent_.empty());
  }
  tick(kOpUs);
  EXPECT_EQ(receivers<BarrierDone>(), Peers{1});
  EXPECT_EQ(first<BarrierDone>().text, "barrier: has waited 60 s for rank 0 (host h, pid 100)");
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, LeavingIsToldAndFailsWaitingBarriers) {
  start();
  receive(1, Barrier{1});
  receive(0, Leave{});
  EXPECT_EQ(first<Left>(), (Left{2, 0}));
  EXPECT_EQ(receivers<Left>(), (Peers{0, 1, 2}));
  EXPECT_EQ(receivers<BarrierDone>(), Peers{1});
  EXPECT_EQ(first<BarrierDone>().text, "barrier: rank 0 (host h, pid 100) has left the job");
  close(0);
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  receive(2, Heartbeat{}, kTimeoutUs);
  receive(1, Heartbeat{}, kTimeoutUs);
  tick(kTimeoutUs);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << "a node that has left may be silent";
}

// A scheduler that measures the network cards first.
class MeasuringTest : public SchedulerStateTest {
 protected:
  MeasuringTest() { start(0); }
  void start(TimeUs report_us) {
    state_ = SchedulerState({.num_workers = 2,
                             .num_servers = 1,
                             .start_timeout_us = kStartUs,
                             .timeout_us = kTimeoutUs,
                             .op_timeout_us = kOpUs,
                             .probe_nics = true,
                             .report_us = report_us,
                             .first_epoch = 5},
                            0);
  }
  void join_all(TimeUs now = 0) {
    receive(0, join_of(Role::kWorker, 0, "a"), now);
    receive(1, join_of(Role::kWorker, 1, "b"), now);
    receive(2, join_of(Role::kServer, 0, "c"), now);
  }
  void start_rounds() {
    join_all();
    for (PeerId peer = 0; peer < 3; ++peer) receive(peer, ProbeReady{{"10.0.0.1:1"}});
    ASSERT_EQ(receivers<ProbeStart>(), Peers{0});
  }
  // All measure 80 Mbit/s.
  Roster roster_after(uint64_t round_trip_us) {
    start_rounds();
    for (uint32_t hub = 0; hub < 3; ++hub)
      receive(hub, ProbeDone{first<ProbeStart>().round, 10'000'000, round_trip_us + hub});
    return first<Roster>();
  }
};

TEST_F(MeasuringTest, TwoWorkersTakeTurnsOnALongPath) {
  for (const bool far : {false, true}) {
    state_ = SchedulerState({.num_workers = 2,
                             .start_timeout_us = kStartUs,
                             .timeout_us = kTimeoutUs,
                             .op_timeout_us = kOpUs,
                             .probe_nics = true,
                             .first_epoch = 5},
                            0);
    receive(0, join_of(Role::kWorker, 0, "a"), 0);
    receive(1, join_of(Role::kWorker, 1, "b"), 0);
    for (PeerId peer = 0; peer < 2; ++peer) receive(peer, ProbeReady{{"10.0.0.1:1"}});
    for (uint32_t hub = 0; hub < 2; ++hub)
      receive(hub, ProbeDone{first<ProbeStart>().round, 10'000'000, far ? 20'000u : 100u});
    EXPECT_EQ(first<Roster>().takes_turns, far);
  }
  start(0);
  EXPECT_FALSE(roster_after(20'000).takes_turns) << "the server has a part of the card";
}

TEST_F(MeasuringTest, ReportsAreOfManyRoundTrips) {
  start(750'000);
  EXPECT_EQ(roster_after(100).report_us, 750'000u);
  start(750'000);
  EXPECT_EQ(roster_after(100'000).report_us, 5'000'100u);
  start(0);
  EXPECT_EQ(roster_after(100'000).report_us, 0u) << "none are wanted";
}

TEST_F(MeasuringTest, TheRosterWaitsForTheSpeedsAndHasThem) {
  join_all();
  EXPECT_EQ(state_.phase(), Phase::kMeasuring);
  ASSERT_EQ(receivers<ProbeSetup>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<ProbeSetup>().epoch, 5u);
  for (PeerId peer = 0; peer < 3; ++peer) receive(peer, ProbeReady{{"10.0.0.1:1"}});
  for (uint32_t hub = 0; hub < 3; ++hub) {
    ASSERT_EQ(receivers<ProbeStart>(), Peers{hub});
    EXPECT_EQ(first<ProbeStart>().helpers.size(), 2u);
    receive(hub, ProbeDone{first<ProbeStart>().round, (hub + 1) * 10'000'000, 100});
  }
  ASSERT_EQ(receivers<Roster>(), (Peers{0, 1, 2}));
  const auto roster = first<Roster>();
  EXPECT_GT(roster.nodes[0].nic_mbps, 80u);
  EXPECT_GT(roster.nodes[1].nic_mbps, roster.nodes[0].nic_mbps);
  EXPECT_GT(roster.nodes[2].nic_mbps, roster.nodes[1].nic_mbps);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(MeasuringTest, KnownSpeedsAreNotMeasured) {
  for (PeerId peer = 0; peer < 3; ++peer) {
    Join join = join_of(peer < 2 ? Role::kWorker : Role::kServer, peer < 2 ? static_cast<int32_t>(peer) : 0,
                        std::to_string(peer));
    join.self.nic_mbps = 100;
    receive(peer, join);
  }
  EXPECT_EQ(receivers<Roster>(), (Peers{0, 1, 2}));
  EXPECT_TRUE(receivers<ProbeSetup>().empty());
}

// Three workers on machines of their own with equal cards; reports once a second.
class LearningTest : public SchedulerStateTest {
 protected:
  void SetUp() override {
    state_ = SchedulerState({.num_workers = 3,
                             .start_timeout_us = kStartUs,
                             .timeout_us = kTimeoutUs,
                             .op_timeout_us = kOpUs,
                             .partition_bytes = 4096,
                             .report_us = 1'000'000},
                            0);
    for (PeerId peer = 0; peer < 3; ++peer) {
      Join join = join_of(Role::kWorker, static_cast<int32_t>(peer), "m" + std::to_string(peer));
      join.self.nic_mbps = 200;
      receive(peer, join);
    }
  }
  // Each flow that rank 2 has an end of carries a quarter of the others'.
  void report_slow_rank_2(TimeUs now) {
    for (PeerId from = 0; from < 3; ++from) {
      Traffic traffic;
      for (uint32_t to = 0; to < 3; ++to) {
        for (const bool answers : {false, true}) {
          const uint64_t bytes = from == 2 || to == 2 ? 1'400'000 : 5'600'000;
          if (to != from) traffic.flows.push_back({to, answers, bytes, 1'000'000});
        }
      }
      receive(from, traffic, now);
    }
  }
};

TEST_F(LearningTest, RootsMoveAwayFromASlowCardAndAllAreTold) {
  EXPECT_EQ(first<Roster>().report_us, 1'000'000u);
  receive(0, Declare{"w", DType::kFloat32, 40'960});
  const std::vector<RootLocation> before = first<Placed>().locations;
  TimeUs now = 0;
  while (receivers<Speeds>().empty()) {
    ASSERT_LT(now, 8'000'000);
    report_slow_rank_2(now);
    now += 1'000'000;
    EXPECT_LE(state_.next_tick_us(), now);
    tick(now);
  }
  EXPECT_GE(now, 3'000'000);
  EXPECT_EQ(receivers<Speeds>(), (Peers{0, 1, 2}));
  const auto speeds = first<Speeds>();
  EXPECT_EQ(speeds.placement, 1u);
  EXPECT_EQ(speeds.nic_mbps[0], 200u);
  EXPECT_LT(speeds.nic_mbps[2], 80u);
  EXPECT_LT(speeds.shares_ppb[2], speeds.shares_ppb[0]);
  EXPECT_NE(speeds.text.find("m2: 200 Mbit/s so far, now "), std::string::npos) << speeds.text;
  receive(1, Declare{"w", DType::kFloat32, 40'960, 0, {}, 1}, now);
  EXPECT_NE(first<Placed>().locations, before);
  receive(1, Declare{"w", DType::kFloat32, 40'960, 0, {}, 0}, now);
  EXPECT_EQ(first<Placed>().locations, before);
}

TEST_F(LearningTest, AReportThatNamesNoNodeBreaksTheProtocol) {
  receive(1, Traffic{{{.node = 3}}});
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

TEST_F(SchedulerStateTest, NobodyIsAskedForReportsWhereSharesDependOnNothing) {
  start();
  EXPECT_EQ(first<Roster>().report_us, 0u);
  receive(0, Traffic{{{.node = 1}}});
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

TEST_F(MeasuringTest, TheJobStartsWithoutTheSpeedsOfTheSilent) {
  start_rounds();
  const TimeUs grace_us = state_.next_tick_us();
  EXPECT_LT(grace_us, kTimeoutUs);
  tick(grace_us);
  ASSERT_EQ(receivers<Roster>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Roster>().nodes[0].nic_mbps, 0u);
  receive(0, ProbeDone{1, 1'000'000, 100}, grace_us);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << "late answers are ignored";
}

TEST_F(MeasuringTest, TheJobStartsByItsDeadlineAllTheSame) {
  join_all(kStartUs - 10);
  EXPECT_EQ(state_.next_tick_us(), kStartUs);
  tick(kStartUs);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(MeasuringTest, ANodeThatDiesMeanwhileIsNamed) {
  start_rounds();
  close(1);
  expect_failed("rank 1 (host b, pid 101) ended without leaving: end of file", {0, 2});
}

TEST_F(MeasuringTest, ANodeThatLeavesMeanwhileIsNamed) {
  start_rounds();
  receive(1, Leave{});
  expect_failed("rank 1 (host b, pid 101) left before the job had started", {0, 1, 2});
}

TEST_F(MeasuringTest, NobodyWorksBeforeTheStart) {
  start_rounds();
  receive(1, Declare{"w", DType::kFloat32, 4});
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

TEST_F(MeasuringTest, TheSchedulersProcessMayLeaveMeanwhile) {
  start_rounds();
  shutdown();
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

}  // namespace
}  // namespace byteps::protocol
