// SchedulerState: servers that come to the running job.
#include <set>

#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

// The first server is node 2; those that come are peers and nodes 3, 4, ….
class SchedulerNewcomersTest : public SchedulerStateTest {
 protected:
  SchedulerNewcomersTest() : SchedulerStateTest(true) { start(); }

  void come(PeerId peer, TimeUs now = 0) {
    receive(peer, join_of(Role::kServer, -1, "new" + std::to_string(peer)), now);
  }
  Roster roster_of(PeerId peer) const {
    for (const SendTo& send : sent_) {
      const auto* const roster = std::get_if<Roster>(&send.message);
      if (roster != nullptr && send.peer == peer) return *roster;
    }
    ADD_FAILURE() << "no roster was sent to peer " << peer;
    return {};
  }
};

TEST_F(SchedulerNewcomersTest, GetTheRosterAndTheOthersHearOfThem) {
  come(3);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << state_.failure();
  const Roster roster = roster_of(3);
  EXPECT_EQ(roster.self, 3u);
  EXPECT_EQ(roster.num_workers, 2u);
  EXPECT_EQ(roster.num_added, 1u);
  EXPECT_EQ(roster.nodes.size(), 4u);
  EXPECT_EQ(roster.nodes[3].rank, 1);
  EXPECT_EQ(roster.epoch, 1u);
  EXPECT_EQ(roster.timeout_us, static_cast<uint64_t>(kTimeoutUs));
  EXPECT_TRUE(roster.failover);
  EXPECT_TRUE(roster.lost.empty());
  EXPECT_EQ(receivers<Added>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Added>().server, roster.nodes[3]);
}

TEST_F(SchedulerNewcomersTest, GetPartitionsByTheNextPlacement) {
  come(3);
  EXPECT_EQ(receivers<Speeds>(), (Peers{0, 1, 2, 3}));
  EXPECT_EQ(first<Speeds>().placement, 1) << "roots move";
  EXPECT_EQ(first<Speeds>().shares_ppb, (std::vector<uint32_t>{0, 500'000'000, 500'000'000}));
  receive(0, Declare{.name = "b", .bytes = 4 * 4096, .placement = 1});
  std::set<uint16_t> hosts;
  for (const RootLocation& location : first<Placed>().locations) hosts.insert(location.reducer_host);
  EXPECT_EQ(hosts, (std::set<uint16_t>{1, 2}));
}

// The name is new, so a server that has come since may be its root.
TEST_F(SchedulerNewcomersTest, HearOfRoundsThatHaveFailedBefore) {
  receive(0, RoundFailed{.name = "b", .round = 1, .refused = true, .text = "root: expected a rank"});
  EXPECT_EQ(receivers<Refused>(), (Peers{0, 1, 2}));
  come(3);
  EXPECT_EQ(receivers<Refused>(), (Peers{3}));
  EXPECT_EQ(first<Refused>().name, "b");
  EXPECT_EQ(first<Refused>().round, 1u);
}

TEST_F(SchedulerNewcomersTest, UseNoMoreShardsThanTheOthers) {
  Join join = join_of(Role::kServer, -1);
  join.self.endpoints = {{"tcp", {"a:1", "a:2", "a:3"}}};
  receive(3, join);
  EXPECT_EQ(first<Added>().server.endpoints, (std::vector<Endpoint>{{"tcp", {"a:1"}}}));
  EXPECT_EQ(roster_of(3).nodes[3], first<Added>().server);
}

TEST_F(SchedulerNewcomersTest, ComeInPlaceOfLostOnesWithNewNumbers) {
  close(2);
  come(3);
  EXPECT_EQ(roster_of(3).lost, (std::vector<uint32_t>{2}));
  EXPECT_EQ(receivers<Added>(), (Peers{0, 1}));
  EXPECT_EQ(first<Speeds>().shares_ppb, (std::vector<uint32_t>{0, 0, 1'000'000'000}));
  close(3);
  EXPECT_EQ(first<Removed>().node, 3u);
  come(4);
  EXPECT_EQ(roster_of(4).lost, (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(roster_of(4).num_added, 2u);
  EXPECT_EQ(state_.phase(), Phase::kRunning) << state_.failure();
}

// In containers, a process that is started again often has the number of the last one.
TEST_F(SchedulerNewcomersTest, MayHaveTheHostAndTheProcessNumberOfALostOne) {
  close(2);
  receive(3, join_of(Role::kServer, 0));
  EXPECT_EQ(roster_of(3).self, 3u);
}

TEST_F(SchedulerNewcomersTest, AreLostIfTheyAreSilent) {
  come(3, kTimeoutUs / 2);
  for (const PeerId peer : {0, 1, 2}) receive(peer, Heartbeat{}, 3 * kTimeoutUs / 2 - 1);
  tick(3 * kTimeoutUs / 2 - 1);
  EXPECT_TRUE(receivers<Removed>().empty());
  tick(3 * kTimeoutUs / 2);
  EXPECT_EQ(receivers<Removed>(), (Peers{0, 1, 2}));
  EXPECT_EQ(first<Removed>().node, 3u);
}

TEST_F(SchedulerNewcomersTest, HearWhichWorkersTakePartInNothingAnyMore) {
  receive(0, Leave{});
  receive(1, Lingers{1});
  come(3);
  ASSERT_EQ(receivers<Left>(), (Peers{3}));
  EXPECT_EQ(first<Left>().node, 0u);
  ASSERT_EQ(receivers<Lingers>(), (Peers{3}));
  EXPECT_EQ(first<Lingers>().node, 1u);
}

TEST_F(SchedulerNewcomersTest, OfAnotherVersionAreRefusedAndTheJobGoesOn) {
  Join join = join_of(Role::kServer, -1);
  join.version = "another";
  receive(3, join);
  EXPECT_EQ(receivers<Lost>(), (Peers{3}));
  EXPECT_EQ(closed_, (Peers{3}));
  EXPECT_TRUE(receivers<Added>().empty());
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerNewcomersTest, OfAJobWithOtherWorkersAreRefusedAndTheJobGoesOn) {
  Join join = join_of(Role::kServer, -1);
  join.num_workers = 3;
  receive(3, join);
  EXPECT_NE(first<Lost>().text.find("expects 3 workers, but the job has 2"), std::string::npos);
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerNewcomersTest, AreServersOnly) {
  receive(3, join_of(Role::kWorker, 2));
  EXPECT_EQ(receivers<Lost>(), (Peers{3}));
  EXPECT_EQ(state_.phase(), Phase::kRunning);
}

TEST_F(SchedulerNewcomersTest, AreToldOfTheEnd) {
  come(3);
  receive(0, Leave{});
  receive(1, Leave{});
  EXPECT_EQ(receivers<Finished>(), (Peers{0, 1, 2, 3}));
}

TEST(SchedulerWithoutFailover, TakesNoServersLater) {
  SchedulerState state(
      {.num_workers = 1, .start_timeout_us = kStartUs, .timeout_us = kTimeoutUs, .failover = false}, 0);
  SchedulerActions actions;
  state.on_message(0, join_of(Role::kWorker, 0), 0, actions);
  ASSERT_EQ(state.phase(), Phase::kRunning);
  actions.clear();
  state.on_message(1, join_of(Role::kServer, 0), 0, actions);
  ASSERT_EQ(actions.size(), 2u);
  const auto& answer = std::get<Lost>(std::get<SendTo>(actions[0]).message);
  EXPECT_NE(answer.text.find("has started already"), std::string::npos) << answer.text;
  EXPECT_EQ(state.phase(), Phase::kRunning);
}

}  // namespace
}  // namespace byteps::protocol
