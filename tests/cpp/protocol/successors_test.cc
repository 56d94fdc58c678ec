#include "protocol/successors.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace byteps::protocol {
namespace {

constexpr uint32_t kKeys = 4000;

NodeInfo node(Role role, int32_t rank, const std::string& machine) {
  return {
      .role = role, .rank = rank, .host = machine, .machine = machine, .endpoints = {{"tcp", {"a", "b"}}}};
}

// Three machines with two ranks each, and three servers: nodes 6 to 8.
std::vector<NodeInfo> nodes() {
  std::vector<NodeInfo> nodes;
  for (int32_t rank = 0; rank < 6; ++rank)
    nodes.push_back(node(Role::kWorker, rank, "m" + std::to_string(rank / 2)));
  for (int32_t server = 0; server < 3; ++server)
    nodes.push_back(node(Role::kServer, server, "s" + std::to_string(server)));
  return nodes;
}

const Tree kTree(nodes(), 6);
const std::vector<uint32_t> kEqual(6, 166'666'666);

DataHead head_to(uint32_t number, uint32_t root_node, uint16_t serving_index = 0) {
  DataHead head;
  head.key = {key_tensor(number, 0), 0};
  head.root_node = static_cast<uint16_t>(root_node);
  head.serving_index = serving_index;
  return head;
}

TEST(Successors, ARootThatIsNotLostStays) {
  Successors successors(kTree);
  successors.lose(7, kEqual);
  EXPECT_FALSE(successors.is_lost(6));
  EXPECT_TRUE(successors.is_lost(7));
  EXPECT_EQ(successors.root(head_to(1, 6)), 6u);
  EXPECT_EQ(successors.root(head_to(1, 0)), 0u);
}

TEST(Successors, KeysAreSpreadInProportionToTheShares) {
  Successors successors(kTree);
  successors.lose(6, {100, 200, 100, 0, 400, 0});
  std::map<uint32_t, uint32_t> count;
  for (uint32_t number = 1; number <= kKeys; ++number) ++count[successors.root(head_to(number, 6))];
  EXPECT_NEAR(count[0], kKeys / 8.0, kKeys / 40.0);
  EXPECT_NEAR(count[2], kKeys / 4.0, kKeys / 40.0);
  EXPECT_NEAR(count[4], kKeys / 8.0, kKeys / 40.0);
  EXPECT_NEAR(count[7], kKeys / 2.0, kKeys / 40.0);
  EXPECT_EQ(count.size(), 4u);
}

TEST(Successors, OnAMachineTheRankThatServesTheKeyIsTheRoot) {
  Successors successors(kTree);
  for (const uint32_t server : {6u, 7u, 8u}) successors.lose(server, kEqual);
  for (uint32_t number = 1; number < 100; ++number) {
    EXPECT_EQ(successors.root(head_to(number, 7, 0)) % 2, 0u);
    EXPECT_EQ(successors.root(head_to(number, 7, 1)) % 2, 1u);
  }
}

// All ranks must agree, though they hear of losses at different times.
TEST(Successors, ALaterLossMovesOnlyTheKeysOfTheServerThatIsLostThen) {
  Successors one(kTree);
  one.lose(6, kEqual);
  Successors both = one;
  both.lose(8, kEqual);
  Successors reversed(kTree);
  reversed.lose(8, kEqual);
  reversed.lose(6, kEqual);
  uint32_t moved = 0;
  for (uint32_t number = 1; number <= kKeys; ++number) {
    const uint32_t before = one.root(head_to(number, 6));
    const uint32_t after = both.root(head_to(number, 6));
    EXPECT_EQ(after, reversed.root(head_to(number, 6)));
    EXPECT_TRUE(before == 8 || after == before) << "key " << number;
    if (before == 8) ++moved;
    EXPECT_NE(after, 8u);
  }
  EXPECT_GT(moved, kKeys / 10);
}

TEST(Successors, WithoutAHostWithAShareTheOthersTakeOver) {
  Successors successors(kTree);
  successors.lose(6, {0, 0, 0, 0, 500'000'000, 0});
  for (uint32_t number = 1; number < 100; ++number) EXPECT_EQ(successors.root(head_to(number, 6)), 7u);
  successors.lose(7, kEqual);
  std::map<uint32_t, uint32_t> count;
  for (uint32_t number = 1; number <= kKeys; ++number) ++count[successors.root(head_to(number, 6))];
  EXPECT_EQ(count.size(), 4u) << "three machines and the server that had no share";
}

// Ranks hear of the loss before they hear of the server that comes; some have moved partitions then.
TEST(Successors, AServerThatComesSucceedsOnlyThoseThatAreLostLater) {
  Successors before(kTree);
  before.lose(6, kEqual);
  Successors after = before;
  after.add(node(Role::kServer, 3, "s3"));
  for (uint32_t number = 1; number < 200; ++number)
    EXPECT_EQ(before.root(head_to(number, 6)), after.root(head_to(number, 6)));
  EXPECT_EQ(after.root(head_to(1, 9)), 9u);
  after.lose(7, std::vector<uint32_t>(7, 1));
  uint32_t to_newcomer = 0;
  for (uint32_t number = 1; number < 200; ++number) {
    EXPECT_NE(after.root(head_to(number, 6)), 9u);
    if (after.root(head_to(number, 7)) == 9u) ++to_newcomer;
  }
  EXPECT_GT(to_newcomer, 10u);
  after.lose(9, kEqual);
  for (uint32_t number = 1; number < 200; ++number) EXPECT_NE(after.root(head_to(number, 7)), 9u);
  EXPECT_NE(after.root(head_to(1, 9)), 9u);
}

// Then all hosts have the shares of the next placement, in which nobody waits for the most loaded.
TEST(SuccessorWeights, AreWhatTheSharesGrowBy) {
  EXPECT_EQ(successor_weights({0.1, 0.1, 0.4, 0.4}, {0.25, 0.25, 0, 0.5}),
            (std::vector<uint32_t>{150'000'000, 150'000'000, 0, 99'999'999}));
  EXPECT_EQ(successor_weights({0.5, 0.5, 0}, {0.5, 0.5, 0}),
            (std::vector<uint32_t>{500'000'000, 500'000'000, 0}))
      << "the lost server had no share";
}

}  // namespace
}  // namespace byteps::protocol
