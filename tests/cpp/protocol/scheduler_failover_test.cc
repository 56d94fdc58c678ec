// SchedulerState: jobs that go on without their servers.
#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

class SchedulerFailoverTest : public SchedulerStateTest {
 protected:
  SchedulerFailoverTest() : SchedulerStateTest(true) { start(); }

  void expect_removed(const std::string& cause) {
    EXPECT_EQ(state_.phase(), Phase::kRunning) << state_.failure();
    EXPECT_EQ(receivers<Removed>(), (Peers{0, 1}));
    EXPECT_EQ(first<Removed>().node, 2u);
    EXPECT_NE(first<Removed>().text.find("server 0 (host h"), std::string::npos) << first<Removed>().text;
    EXPECT_NE(first<Removed>().text.find(cause), std::string::npos) << first<Removed>().text;
  }
};

TEST_F(SchedulerFailoverTest, TheRosterSaysThatTheJobGoesOn) {
  SetUp();
  EXPECT_TRUE(first<Roster>().failover);
}

TEST_F(SchedulerFailoverTest, AServerThatEndsIsRemovedAndGetsNoPartitionsAnyMore) {
  receive(0, Declare{.name = "a", .bytes = 4096});
  EXPECT_EQ(first<Placed>().locations, (std::vector<RootLocation>{{1, 0}})) << "the only server";
  close(2);
  expect_removed("ended without leaving: end of file");
  EXPECT_EQ(first<Removed>().weights_ppb, (std::vector<uint32_t>{1'000'000'000, 0}));
  const Speeds speeds = first<Speeds>();
  EXPECT_EQ(receivers<Speeds>(), (Peers{0, 1}));
  EXPECT_EQ(speeds.placement, 1) << "roots move";
  EXPECT_EQ(speeds.shares_ppb, (std::vector<uint32_t>{1'000'000'000, 0}));
  receive(0, Declare{.name = "b", .bytes = 4096});
  EXPECT_EQ(first<Placed>().locations, (std::vector<RootLocation>{{0, 0}}));
}

TEST_F(SchedulerFailoverTest, ASilentServerIsRemovedAndTold) {
  for (TimeUs now = kTimeoutUs / 4; now <= kTimeoutUs; now += kTimeoutUs / 4) {
    receive(0, Heartbeat{}, now);
    receive(1, Heartbeat{}, now);
  }
  tick(kTimeoutUs);
  expect_removed("has been silent for 10 s");
  EXPECT_EQ(receivers<Lost>(), (Peers{2})) << "if it still runs, it must not go on";
  EXPECT_EQ(closed_, (Peers{2}));
  tick(3 * kTimeoutUs / 2);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << "nobody waits for it any more";
}

TEST_F(SchedulerFailoverTest, BarriersWaitAnewWhenAServerIsLost) {
  receive(0, Barrier{1}, 10);
  const TimeUs lost_us = kOpUs - 10;
  for (TimeUs now = kTimeoutUs / 4; now < lost_us; now += kTimeoutUs / 4) {
    for (const uint32_t member : {0, 1, 2}) receive(member, Heartbeat{}, now);
  }
  close(2, lost_us);
  tick(10 + kOpUs);
  EXPECT_EQ(receivers<BarrierDone>(), Peers{});
  receive(0, Heartbeat{}, lost_us + kTimeoutUs / 2);
  receive(1, Barrier{1}, lost_us + kTimeoutUs / 2);
  EXPECT_EQ(receivers<BarrierDone>(), (Peers{0, 1}));
}

TEST_F(SchedulerFailoverTest, WhereAWorkerAndAServerCannotReachEachOtherTheServerGoes) {
  receive(2, Suspect{1, "timed out"}, 10);
  receive(0, Heartbeat{}, 20);
  receive(1, Heartbeat{}, 20);
  receive(2, Heartbeat{}, 20);
  tick(10 + kTimeoutUs / kHeartbeatsPerTimeout);
  expect_removed("lost its connection to rank 1");
}

TEST_F(SchedulerFailoverTest, AServerThatCannotGoOnOrLeavesIsRemoved) {
  receive(2, Suspect{2, "its thread hangs"});
  expect_removed("its thread hangs");
}

TEST_F(SchedulerFailoverTest, AServerThatIsInterruptedIsRemoved) {
  receive(2, Leave{"KeyboardInterrupt"});
  expect_removed("ended by KeyboardInterrupt");
}

TEST_F(SchedulerFailoverTest, WhereTensorsAreStoredRanksHaveToSayWhatTheyHold) {
  receive(0, Declare{.name = "a", .bytes = 4096, .mode = {.stored = true, .staleness = 0}});
  close(2);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  EXPECT_TRUE(first<Removed>().stores);
}

TEST_F(SchedulerFailoverTest, AWorkerThatEndsEndsTheJob) {
  close(1);
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

TEST_F(SchedulerFailoverTest, AllWorkersHearThatOneLingersAndThatAllDo) {
  receive(1, Lingers{1});
  EXPECT_EQ(receivers<Lingers>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Lingers>().node, 1u);
  EXPECT_TRUE(receivers<AllLinger>().empty());
  receive(0, Barrier{1});
  EXPECT_NE(first<BarrierDone>().code, StatusCode::kOk) << "it takes part in nothing any more";
  receive(0, Lingers{0});
  EXPECT_EQ(receivers<AllLinger>(), (Peers{0, 1, 2}));
}

TEST_F(SchedulerFailoverTest, ANodeSpeaksForItselfOnly) {
  receive(1, Lingers{0});
  EXPECT_EQ(state_.phase(), Phase::kFailed);
}

}  // namespace
}  // namespace byteps::protocol
