#include "protocol/scheduler_state.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace byteps::protocol {
namespace {

using Phase = SchedulerState::Phase;

constexpr TimeUs kStartUs = 30'000'000;
constexpr TimeUs kTimeoutUs = 10'000'000;
constexpr TimeUs kOpUs = 60'000'000;

Join join_of(Role role, int32_t rank, const std::string& host = "h") {
  Join join;
  join.self.role = role;
  join.self.rank = rank;
  join.self.host = host;
  join.self.machine = host;
  join.self.pid = 100 + static_cast<uint64_t>(rank);
  return join;
}

// A scheduler, and what it sent in its last call. Peers 0 and 1 are the workers, 2 is the server.
class SchedulerStateTest : public testing::Test {
 protected:
  void receive(PeerId peer, const Control& message, TimeUs now = 0) {
    collect([&](SchedulerActions& actions) { state_.on_message(peer, message, now, actions); });
  }
  void close(PeerId peer, TimeUs now = 0) {
    collect(
        [&](SchedulerActions& actions) { state_.on_closed(peer, unavailable("end of file"), now, actions); });
  }
  void tick(TimeUs now) {
    collect([&](SchedulerActions& actions) { state_.on_tick(now, actions); });
  }
  void shutdown() {
    collect([&](SchedulerActions& actions) { state_.on_shutdown("rank 0 has left", actions); });
  }
  void start() {
    receive(0, join_of(Role::kWorker, 0));
    receive(1, join_of(Role::kWorker, 1));
    receive(2, join_of(Role::kServer, 0));
    ASSERT_EQ(state_.phase(), Phase::kRunning);
  }
  template <typename Body>
  void collect(Body body) {
    SchedulerActions actions;
    body(actions);
    sent_.clear();
    closed_.clear();
    for (const SchedulerAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) sent_.push_back(*send);
      if (const auto* close = std::get_if<ClosePeer>(&action)) closed_.push_back(close->peer);
    }
  }
  // The peers that were sent a T, in order.
  template <typename T>
  std::vector<PeerId> receivers() const {
    std::vector<PeerId> peers;
    for (const SendTo& send : sent_) {
      if (std::holds_alternative<T>(send.message)) peers.push_back(send.peer);
    }
    std::sort(peers.begin(), peers.end());
    return peers;
  }
  template <typename T>
  T first() const {
    for (const SendTo& send : sent_) {
      if (const auto* message = std::get_if<T>(&send.message)) return *message;
    }
    ADD_FAILURE() << "nothing of this type was sent";
    return T{};
  }
  void expect_failed(const std::string& message, const std::vector<PeerId>& told) {
    EXPECT_EQ(state_.phase(), Phase::kFailed);
    EXPECT_EQ(state_.failure().message(), message);
    EXPECT_EQ(receivers<Lost>(), told);
    EXPECT_EQ(first<Lost>().text, message);
    EXPECT_EQ(state_.next_tick_us(), kNever);
  }

  SchedulerState state_{{.num_workers = 2,
                         .num_servers = 1,
                         .start_timeout_us = kStartUs,
                         .timeout_us = kTimeoutUs,
                         .op_timeout_us = kOpUs,
                         .partition_bytes = 4096,
                         .placement = {.kind = PlacementPolicy::Kind::kPs}},
                        0};
  std::vector<SendTo> sent_;
  std::vector<PeerId> closed_;
};

using Peers = std::vector<PeerId>;

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

TEST_F(SchedulerStateTest, StartDeadlineSaysWhoIsMissingAndWhoIsThere) {
  receive(1, join_of(Role::kWorker, 1, "b"));
  EXPECT_EQ(state_.next_tick_us(), kStartUs);
  tick(kStartUs - 1);
  EXPECT_EQ(state_.phase(), Phase::kJoining);
  tick(kStartUs);
  expect_failed(
      "the job has not started within 30 s: rank 0 and 1 server missing; joined: rank 1 (host b, pid 101)",
      {1});
  EXPECT_EQ(state_.failure().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(SchedulerStateTest, WhoDoesNotFitFailsTheJobAtOnce) {
  receive(0, join_of(Role::kWorker, 0, "a"));
  receive(1, join_of(Role::kWorker, 0, "b"));
  expect_failed("rank 0 (host b, pid 100): the number is taken: rank 0 (host a, pid 100) has joined before",
                {0, 1});
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

TEST_F(SchedulerStateTest, DeclarationsAreAnsweredToWhoAsks) {
  start();
  receive(1, Declare{"w", DType::kFloat32, 8192});
  EXPECT_EQ(receivers<Placed>(), Peers{1});
  EXPECT_EQ(first<Placed>().places, (std::vector<Place>{{1, 0}, {1, 1}}))
      << "all at the server; the ranks of the machine take turns";
  const Placed placed = first<Placed>();
  receive(0, Declare{"w", DType::kFloat32, 8192});
  EXPECT_EQ(receivers<Placed>(), Peers{0});
  EXPECT_EQ(first<Placed>(), placed);
}

TEST_F(SchedulerStateTest, DisagreementAboutATensorIsToldToAllNodes) {
  start();
  receive(1, Declare{"w", DType::kFloat32, 8});
  receive(0, Declare{"w", DType::kFloat64, 8});
  EXPECT_EQ(receivers<Refused>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Refused>().text,
            "rank 1 (host h, pid 101) declares 2 elements of float32, "
            "rank 0 (host h, pid 100) declares 1 elements of float64");
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerStateTest, DisagreementAboutTheUpkeepOfATensorNamesBothRanks) {
  start();
  receive(1, Declare{.name = "w", .bytes = 8, .upkeep = {true, 3}});
  receive(0, Declare{.name = "w", .bytes = 8, .upkeep = {true, kUnboundedStaleness}});
  EXPECT_EQ(receivers<Refused>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Refused>().text,
            "rank 1 (host h, pid 101) keeps it with staleness 3, "
            "rank 0 (host h, pid 100) keeps it with unbounded staleness");
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
  EXPECT_EQ(state_.phase(), Phase::kRunning) << "who has left may be silent";
}

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

TEST_F(SchedulerStateTest, SuspicionWaitsForTheSuspectsOwnFate) {
  start();
  receive(0, Suspect{2, "reset"}, 5);
  receive(0, Suspect{2, "reset"}, 6);
  tick(5);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  close(2, 10);
  expect_failed("server 0 (host h, pid 100) ended without leaving: end of file", {0, 1});
}

TEST_F(SchedulerStateTest, BrokenConnectionBetweenLivingNodesFailsTheJob) {
  start();
  receive(0, Suspect{2, "reset"}, 5);
  for (PeerId peer : {0, 1, 2}) receive(peer, Heartbeat{}, kTimeoutUs);
  EXPECT_EQ(state_.next_tick_us(), 5 + kTimeoutUs);
  tick(5 + kTimeoutUs);
  expect_failed("rank 0 (host h, pid 100) lost its connection to server 0 (host h, pid 100): reset",
                {0, 1, 2});
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
      {0, Roster{}, "rank 0 (host h, pid 100) broke the protocol: sent a message that is not for it to send"},
      {0, Placed{}, "not for it"},
      {0, Lost{}, "not for it"},
      {0, Finished{}, "not for it"},
      {0, BarrierDone{}, "not for it"},
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

TEST_F(SchedulerStateTest, NothingButJoiningHappensBeforeTheStart) {
  receive(0, join_of(Role::kWorker, 0));
  receive(0, Declare{"w", DType::kFloat32, 4});
  expect_failed("rank 0 (host h, pid 100) broke the protocol: did not wait for the start of the job", {0});
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

TEST_F(SchedulerStateTest, WhoHasLeftAndComesBackIsForTheNextJob) {
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

// As above, and network cards are measured first.
class MeasuringTest : public SchedulerStateTest {
 protected:
  MeasuringTest() {
    state_ = SchedulerState({.num_workers = 2,
                             .num_servers = 1,
                             .start_timeout_us = kStartUs,
                             .timeout_us = kTimeoutUs,
                             .op_timeout_us = kOpUs,
                             .probe_nics = true,
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
};

TEST_F(MeasuringTest, TheRosterWaitsForTheSpeedsAndHasThem) {
  join_all();
  EXPECT_EQ(state_.phase(), Phase::kMeasuring);
  ASSERT_EQ(receivers<ProbeSetup>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<ProbeSetup>().epoch, 5u);
  for (PeerId peer = 0; peer < 3; ++peer) receive(peer, ProbeReady{{"10.0.0.1:1"}});
  for (uint32_t hub = 0; hub < 3; ++hub) {
    ASSERT_EQ(receivers<ProbeStart>(), Peers{hub});
    EXPECT_EQ(first<ProbeStart>().helpers.size(), 2u);
    receive(hub, ProbeDone{first<ProbeStart>().round, (hub + 1) * 10'000'000});
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

TEST_F(MeasuringTest, TheJobStartsWithoutTheSpeedsOfTheSilent) {
  start_rounds();
  const TimeUs patience_us = state_.next_tick_us();
  EXPECT_LT(patience_us, kTimeoutUs);
  tick(patience_us);
  ASSERT_EQ(receivers<Roster>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Roster>().nodes[0].nic_mbps, 0u);
  receive(0, ProbeDone{1, 1'000'000}, patience_us);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << "late answers harm nobody";
}

TEST_F(MeasuringTest, TheJobStartsByItsDeadlineAllTheSame) {
  join_all(kStartUs - 10);
  EXPECT_EQ(state_.next_tick_us(), kStartUs);
  tick(kStartUs);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(MeasuringTest, WhoDiesMeanwhileIsNamed) {
  start_rounds();
  close(1);
  expect_failed("rank 1 (host b, pid 101) ended without leaving: end of file", {0, 2});
}

TEST_F(MeasuringTest, WhoLeavesMeanwhileIsNamed) {
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
