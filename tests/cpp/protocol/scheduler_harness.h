// Shared by the tests of SchedulerState.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "protocol/scheduler_state.h"

namespace byteps::protocol {

using Phase = SchedulerState::Phase;

inline constexpr TimeUs kStartUs = 30'000'000;
inline constexpr TimeUs kTimeoutUs = 10'000'000;
inline constexpr TimeUs kOpUs = 60'000'000;

inline Join join_of(Role role, int32_t rank, const std::string& host = "h") {
  Join join;
  join.self.role = role;
  join.self.rank = rank;
  join.self.host = host;
  join.self.machine = host;
  join.self.pid = 100 + static_cast<uint64_t>(rank);
  return join;
}

// A scheduler, and the messages of its last call. Peers 0 and 1 are the workers, 2 is the server.
class SchedulerStateTest : public testing::Test {
 protected:
  explicit SchedulerStateTest(bool failover = false)
      : state_({.num_workers = 2,
                .num_servers = 1,
                .start_timeout_us = kStartUs,
                .timeout_us = kTimeoutUs,
                .op_timeout_us = kOpUs,
                .partition_bytes = 4096,
                .placement = {.kind = PlacementPolicy::Kind::kPs},
                .failover = failover},
               0) {}

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
      if (const auto* roster = std::get_if<SendRoster>(&action)) expand(*roster);
      if (const auto* close = std::get_if<ClosePeer>(&action)) closed_.push_back(close->peer);
    }
  }
  void expand(const SendRoster& send) {
    Roster roster = send.roster;
    for (roster.self = 0; roster.self < send.peers.size(); ++roster.self)
      sent_.push_back({send.peers[roster.self], roster});
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

  SchedulerState state_;
  std::vector<SendTo> sent_;
  std::vector<PeerId> closed_;
};

using Peers = std::vector<PeerId>;

}  // namespace byteps::protocol
