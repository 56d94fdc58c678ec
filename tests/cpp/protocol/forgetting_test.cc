// Names that ranks forget, together with the scheduler: PushPullTable and TensorDirectory.
#include <gtest/gtest.h>

#include <memory>

#include "protocol/push_pull_table.h"
#include "protocol/tensor_directory.h"

namespace byteps::protocol {
namespace {

constexpr uint32_t kRanks = 2;
constexpr Plan kSmaller{.partition_scale = 3, .credit = 2};

Tree two_machines() {
  std::vector<NodeInfo> nodes(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    nodes[rank].rank = static_cast<int32_t>(rank);
    nodes[rank].machine = std::to_string(rank);
  }
  return {nodes, kRanks};
}

// Two ranks, and the scheduler's directory, which gets their messages when deliver() is called.
// Each rank keeps two names of one partition.
class ForgettingTest : public testing::Test {
 protected:
  static constexpr NameLimits kTwoNames{.least = 2 * (kNameWeight + 1), .most = 2 * (kNameWeight + 1)};

  void SetUp() override { make_tables(kTwoNames, kTwoNames); }
  void make_tables(const NameLimits& first, const NameLimits& second) {
    tables_.clear();
    for (const NameLimits& limits : {first, second}) {
      const auto rank = static_cast<uint32_t>(tables_.size());
      tables_.push_back(
          std::make_unique<PushPullTable>(rank, two_machines(), PartitionRule({}, 65536), limits));
    }
  }
  // Starts a push_pull, which waits if the rank does not have the name.
  void start(uint32_t rank, const std::string& name, uint64_t step = 0) {
    PushPull request{.name = name, .dtype = DType::kFloat32, .bytes = 8, .step = step};
    TableActions actions;
    EXPECT_TRUE(tables_[rank]->start(++last_handle_, request, actions).is_ok());
    take(rank, std::move(actions));
  }
  // A push_pull that succeeds at once, with this plan in its result.
  void use(uint32_t rank, const std::string& name, uint64_t step = 0, const Plan& plan = {}) {
    start(rank, name, step);
    deliver();
    complete(rank, plan);
    deliver();
  }
  void use_on_all(const std::string& name) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) use(rank, name);
  }
  void complete(uint32_t rank, const Result<Plan>& outcome) {
    TableActions actions;
    for (const StartPartition& each : std::exchange(started_[rank], {})) {
      tables_[rank]->complete(each.handle, outcome, actions);
      last_ = each;
    }
    take(rank, std::move(actions));
  }
  void refuse(uint32_t rank, const std::string& name, uint64_t step = 0) {
    TableActions actions;
    tables_[rank]->refuse(name, step, invalid_argument("no"), actions);
    take(rank, std::move(actions));
  }
  void take(uint32_t rank, TableActions actions) {
    for (TableAction& action : actions) {
      if (auto* send = std::get_if<SendDeclare>(&action)) messages_[rank].emplace_back(send->declare);
      if (auto* send = std::get_if<SendRoundFailed>(&action)) messages_[rank].emplace_back(send->failed);
      if (auto* send = std::get_if<SendForget>(&action)) messages_[rank].emplace_back(send->forget);
      if (auto* start = std::get_if<StartPartition>(&action)) started_[rank].push_back(*start);
    }
  }
  void deliver() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) deliver(rank);
  }
  void deliver(uint32_t rank) {
    while (!messages_[rank].empty()) {
      for (const Control& message : std::exchange(messages_[rank], {})) deliver(rank, message);
    }
  }
  void deliver(uint32_t rank, const Control& message) {
    TableActions actions;
    if (const auto* declare = std::get_if<Declare>(&message)) {
      placed_ = std::get<Placed>(directory_.declare(rank, *declare).message);
      EXPECT_TRUE(tables_[rank]->on_placed(placed_, actions).is_ok());
    } else if (const auto* failed = std::get_if<RoundFailed>(&message)) {
      if (auto refused = directory_.fail_round(rank, *failed)) refused_.push_back(*refused);
    } else {
      for (const ForgottenKeys& keys : directory_.forget(rank, std::get<Forget>(message)))
        forgotten_.push_back(keys);
    }
    take(rank, std::move(actions));
  }
  // Round of the push_pull that the rank has started last.
  uint64_t round_of(uint32_t rank) const { return started_[rank].at(0).head.round; }

  TensorDirectory directory_{{"rank 0", "rank 1"}, {two_machines(), {0.5, 0.5}}, PartitionRule({}, 65536)};
  std::vector<std::unique_ptr<PushPullTable>> tables_;
  std::vector<Control> messages_[kRanks];
  std::vector<StartPartition> started_[kRanks];
  StartPartition last_{};
  Placed placed_;
  std::vector<Refused> refused_;
  std::vector<ForgottenKeys> forgotten_;
  Handle last_handle_ = 0;
};

TEST_F(ForgettingTest, ManyNamesThatAreUsedOnceLeaveNothing) {
  for (int i = 0; i < 200'000; ++i) {
    use_on_all("t" + std::to_string(i));
    ASSERT_LE(tables_[0]->names(), 2u);
    ASSERT_LE(directory_.size(), 4u);
  }
  EXPECT_GT(forgotten_.size(), 390'000u) << "one entry for failures, one for the partitions";
  EXPECT_EQ(forgotten_.back().partitions, 1u);
}

TEST_F(ForgettingTest, AllRanksBeginAnewWithANameThatAllHaveForgotten) {
  use_on_all("a");
  const uint64_t number = number_of(last_.head.key);
  for (const char* name : {"b", "c"}) use_on_all(name);
  ASSERT_GE(forgotten_.size(), 2u);
  EXPECT_EQ(forgotten_[0], (ForgottenKeys{key_tensor(number, 0), 0}));
  EXPECT_EQ(forgotten_[1], (ForgottenKeys{key_tensor(number, 0), 1}));
  use_on_all("a");
  EXPECT_EQ(last_.head.round, 1u);
  EXPECT_GT(number_of(last_.head.key), number) << "numbers are not given again";
}

TEST_F(ForgettingTest, ARankThatHasForgottenGoesOnInItsRound) {
  make_tables(kTwoNames, {});
  for (int i = 0; i < 5; ++i) use_on_all("a");
  const Key key = last_.head.key;
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  EXPECT_TRUE(forgotten_.empty()) << "rank 1 has it";
  use_on_all("a");
  EXPECT_EQ(last_.head.round, 6u);
  start(0, "a");
  deliver();
  EXPECT_EQ(round_of(0), 7u);
  EXPECT_EQ(started_[0][0].head.key, key);
}

TEST_F(ForgettingTest, ARankThatHasForgottenGoesOnWithItsPlan) {
  make_tables(kTwoNames, {});
  for (uint32_t rank : {0, 1}) use(rank, "a", 0, kSmaller);
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  start(0, "a");
  deliver();
  EXPECT_EQ(started_[0].at(0).head.key.tensor % (kMaxPartitionScale + 1), kSmaller.partition_scale);
  EXPECT_EQ(round_of(0), 2u);
}

TEST_F(ForgettingTest, RefusedCallsOfAForgottenNameCount) {
  make_tables(kTwoNames, {});
  for (int i = 0; i < 3; ++i) use_on_all("a");
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  refuse(0, "a");
  refuse(0, "a");
  start(0, "a");
  deliver();
  ASSERT_EQ(refused_.size(), 2u);
  EXPECT_EQ(refused_[0].round, 4u);
  EXPECT_EQ(refused_[1].round, 5u);
  EXPECT_EQ(round_of(0), 6u);
}

TEST_F(ForgettingTest, ACallThatIsRefusedWhileItsNameIsAskedForCountsToo) {
  make_tables(kTwoNames, {});
  for (int i = 0; i < 3; ++i) use_on_all("a");
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  start(0, "a");
  refuse(0, "a");
  deliver();
  EXPECT_EQ(round_of(0), 4u);
  complete(0, Plan{});
  deliver();
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_EQ(refused_[0].round, 5u);
  start(0, "a");
  EXPECT_EQ(round_of(0), 6u);
}

TEST_F(ForgettingTest, StepsAndCallsWithoutStepsCountAsIfNothingWasForgotten) {
  const std::vector<std::vector<uint64_t>> programs = {{0, 0, 0, 0}, {1, 1, 2, 2}, {3, 0, 0, 0},
                                                       {0, 0, 5, 5}, {7, 7, 0, 7}, {1, 0, 1, 2}};
  for (const auto& steps : programs) {
    for (size_t forget_at = 0; forget_at <= steps.size(); ++forget_at) {
      make_tables(kTwoNames, {});
      const std::string name = "p" + std::to_string(last_handle_);
      for (size_t i = 0; i < steps.size(); ++i) {
        if (i == forget_at) {
          for (const char* other : {"b", "c", "d"}) use(0, other);
        }
        for (const uint32_t rank : {0u, 1u}) start(rank, name, steps[i]);
        deliver();
        ASSERT_EQ(round_of(0), round_of(1)) << name << " call " << i << " forgotten at " << forget_at;
        for (const uint32_t rank : {0u, 1u}) complete(rank, Plan{});
        deliver();
      }
    }
  }
}

TEST_F(ForgettingTest, RanksInDifferentRoundsKeepTheName) {
  use_on_all("a");
  refuse(0, "a");
  deliver();
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  EXPECT_EQ(directory_.name_of(1), "a");
  start(0, "a");
  start(1, "a");
  deliver();
  EXPECT_EQ(round_of(0), 3u);
  EXPECT_EQ(round_of(1), 2u) << "fails at the service: rank 0 has refused it";
  complete(0, Plan{});
  complete(1, unavailable("round 2 has failed"));
  use(1, "a");
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  EXPECT_EQ(directory_.name_of(1), "") << "they have met again, and then forgotten it";
}

TEST_F(ForgettingTest, ANameThatOnlyOneRankHasUsedStays) {
  use(0, "a");
  for (const char* name : {"b", "c", "d"}) use_on_all(name);
  EXPECT_EQ(directory_.name_of(1), "a");
  start(1, "a");
  start(0, "a");
  deliver();
  EXPECT_EQ(round_of(1), 1u);
  EXPECT_EQ(round_of(0), 2u);
}

TEST_F(ForgettingTest, WhatIsStoredOrInFlightIsNotForgotten) {
  start(0, "busy");
  PushPull seed{.name = "stored", .dtype = DType::kFloat32, .bytes = 8, .op = ReduceOp::kSeed};
  TableActions actions;
  EXPECT_TRUE(tables_[0]->start(++last_handle_, seed, actions).is_ok());
  take(0, std::move(actions));
  deliver();
  const auto stored = started_[0];
  for (int i = 0; i < 20; ++i) {
    start(0, "t" + std::to_string(i));
    deliver();
    actions.clear();
    tables_[0]->complete(last_handle_, Plan{}, actions);
    take(0, std::move(actions));
  }
  EXPECT_EQ(tables_[0]->names(), 3u) << "and as many others as there is room for beside the busy one";
  EXPECT_EQ(directory_.name_of(1), "busy");
  EXPECT_EQ(directory_.name_of(2), "stored");
}

TEST_F(ForgettingTest, NamesThatComeBackAreKept) {
  const NameLimits growing{.least = kTwoNames.least, .most = 100 * kTwoNames.most};
  make_tables(growing, growing);
  for (int i = 0; i < 10; ++i) {
    for (int name = 0; name < 30; ++name) use_on_all("t" + std::to_string(name));
  }
  forgotten_.clear();
  for (int name = 0; name < 30; ++name) use_on_all("t" + std::to_string(name));
  EXPECT_EQ(tables_[0]->names(), 30u);
  EXPECT_TRUE(forgotten_.empty());
}

TEST_F(ForgettingTest, LargeTensorsWeighMore) {
  make_tables({.least = 1000, .most = 1000}, {});
  for (int i = 0; i < 40; ++i) {
    PushPull request{.name = "t" + std::to_string(i), .dtype = DType::kInt8, .bytes = 100 * 65536};
    TableActions actions;
    EXPECT_TRUE(tables_[0]->start(++last_handle_, request, actions).is_ok());
    take(0, std::move(actions));
    deliver();
    complete(0, Plan{});
    EXPECT_LE(tables_[0]->names(), 1000 / (100 + kNameWeight) + 1);
  }
}

TEST_F(ForgettingTest, ANameThatWasOnlyLookedUpIsForgottenWithoutAWord) {
  TableActions actions;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(tables_[0]->declare("t" + std::to_string(i), DType::kFloat32, 6, actions).is_ok());
  }
  use(0, "a");
  EXPECT_LE(tables_[0]->names(), 2u);
  EXPECT_TRUE(actions.empty());
}

}  // namespace
}  // namespace byteps::protocol
