#include "protocol/numbering.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

Join joining(Role role, int32_t rank, const std::string& machine = "m", uint32_t num_workers = 0,
             uint32_t num_servers = 0) {
  Join join;
  join.self.role = role;
  join.self.rank = rank;
  join.self.machine = machine;
  join.self.host = "h";
  join.num_workers = num_workers;
  join.num_servers = num_servers;
  return join;
}

constexpr auto kWorker = Role::kWorker;
constexpr auto kServer = Role::kServer;

// "w0 w1 s0": the numbers of the nodes, in the order of joining.
std::string numbers(const Numbering& numbering) {
  std::vector<std::string> words(numbering.joined().size());
  for (const auto& [node, index] : numbering.number()) {
    words[index] = (node.role == kWorker ? "w" : "s") + std::to_string(node.rank);
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(Numbering, KeepsTheNumbersThatNodesBring) {
  Numbering numbering(2, 1);
  for (const Join& join : {joining(kWorker, 1), joining(kServer, 0), joining(kWorker, 0)}) {
    EXPECT_FALSE(numbering.complete());
    ASSERT_TRUE(numbering.add(join).is_ok());
  }
  ASSERT_TRUE(numbering.complete());
  EXPECT_EQ(numbers(numbering), "w1 s0 w0");
  const auto nodes = numbering.number();
  EXPECT_EQ(nodes[0].node.rank, 0);
  EXPECT_EQ(nodes[0].joined_index, 2u);
  EXPECT_EQ(nodes[2].node.role, kServer);
}

TEST(Numbering, NeighboursShareAMachine) {
  Numbering numbering(5, 2);
  for (const Join& join : {joining(kServer, -1, "z"), joining(kWorker, -1, "b"), joining(kWorker, -1, "a"),
                           joining(kWorker, -1, "b"), joining(kServer, -1, "a"), joining(kWorker, -1, "a"),
                           joining(kWorker, -1, "b")}) {
    ASSERT_TRUE(numbering.add(join).is_ok());
  }
  EXPECT_EQ(numbers(numbering), "s0 w0 w3 w1 s1 w4 w2");
  std::string local_ranks;
  for (const auto& [node, index] : numbering.number()) {
    local_ranks += " " + std::to_string(node.local_rank) + "/" + std::to_string(node.local_size);
  }
  EXPECT_EQ(local_ranks, " 0/3 1/3 2/3 0/2 1/2 -1/-1 -1/-1");
}

TEST(Numbering, FillsTheGapsBetweenGivenNumbers) {
  Numbering numbering(4, 0);
  for (const Join& join :
       {joining(kWorker, -1), joining(kWorker, 1), joining(kWorker, -1), joining(kWorker, 0)}) {
    ASSERT_TRUE(numbering.add(join).is_ok());
  }
  EXPECT_EQ(numbers(numbering), "w2 w1 w3 w0");
}

TEST(Numbering, KeepsLocalRanksThatNodesBring) {
  Numbering numbering(2, 0);
  Join join = joining(kWorker, 0);
  join.self.local_rank = 3;
  join.self.local_size = 8;
  ASSERT_TRUE(numbering.add(join).is_ok());
  ASSERT_TRUE(numbering.add(joining(kWorker, 1)).is_ok());
  const auto nodes = numbering.number();
  EXPECT_EQ(nodes[0].node.local_rank, 3);
  EXPECT_EQ(nodes[0].node.local_size, 8);
  EXPECT_EQ(nodes[1].node.local_rank, 1);
  EXPECT_EQ(nodes[1].node.local_size, 2);
}

TEST(Numbering, LearnsTheSizeFromTheFirstNode) {
  Numbering numbering(0, 0);
  EXPECT_FALSE(numbering.complete());
  EXPECT_EQ(numbering.missing(), "all workers");
  ASSERT_TRUE(numbering.add(joining(kWorker, 0, "m", 2, 1)).is_ok());
  EXPECT_EQ(numbering.num_workers(), 2u);
  EXPECT_EQ(numbering.missing(), "rank 1 and 1 server");
  ASSERT_TRUE(numbering.add(joining(kServer, 0)).is_ok()) << "need not know it itself";
  ASSERT_TRUE(numbering.add(joining(kWorker, 1)).is_ok());
  EXPECT_TRUE(numbering.complete());
}

TEST(Numbering, ServersMayJoinBeforeTheFirstNodeThatKnowsTheSize) {
  Numbering numbering(0, 0);
  ASSERT_TRUE(numbering.add(joining(kServer, -1)).is_ok());
  ASSERT_TRUE(numbering.add(joining(kServer, 0)).is_ok());
  EXPECT_FALSE(numbering.complete());
  EXPECT_FALSE(numbering.add(joining(kServer, 0)).is_ok()) << "taken";
  Numbering too_many = numbering;
  const Status status = too_many.add(joining(kWorker, 0, "m", 1, 1));
  EXPECT_NE(status.message().find("expects 1 server, but server (host h, pid 0) has joined"),
            std::string::npos)
      << status;
  ASSERT_TRUE(numbering.add(joining(kWorker, 0, "m", 1, 2)).is_ok());
  EXPECT_EQ(numbers(numbering), "s1 s0 w0");

  Numbering out_of_range(0, 0);
  ASSERT_TRUE(out_of_range.add(joining(kServer, 5)).is_ok());
  EXPECT_NE(out_of_range.add(joining(kWorker, 0, "m", 1, 1)).message().find("but server 5"),
            std::string::npos);
}

TEST(Numbering, RefusesNodesThatDoNotFit) {
  struct Case {
    Join join;
    const char* says;
  };
  Join misplaced = joining(kWorker, 1);
  misplaced.self.local_rank = 2;
  misplaced.self.local_size = 2;
  Join half_placed = joining(kWorker, 1);
  half_placed.self.local_rank = 0;
  Join other_version = joining(kWorker, 1);
  other_version.version = "0.2";
  const Case cases[] = {
      {other_version, "has byteps 0.2, rank 0 (host h, pid 7) has byteps : install the same version"},
      {joining(kWorker, 0), "rank 0 (host h, pid 0): its number is taken by rank 0 (host h, pid 7)"},
      {joining(kWorker, 3), "rank: expected a number below 3, got 3"},
      {joining(kServer, 1), "the job is complete: it has 1 server, and all of them have joined"},
      {joining(kWorker, 1, "m", 4),
       "expects 4 workers and 0 servers, but the job has 3 workers and 1 server"},
      {joining(kWorker, 1, "m", 3, 2), "expects 3 workers and 2 servers"},
      {misplaced, "local rank: expected a number below the local size of 2, got 2"},
      {half_placed, "local rank"},
  };
  for (const Case& c : cases) {
    Numbering numbering(3, 1);
    Join first = joining(kWorker, 0);
    first.self.pid = 7;
    ASSERT_TRUE(numbering.add(first).is_ok());
    ASSERT_TRUE(numbering.add(joining(kServer, 0)).is_ok());
    const Status status = numbering.add(c.join);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.says;
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status;
    EXPECT_EQ(numbering.joined().size(), 2u);
  }
  EXPECT_FALSE(Numbering(0, 0).add(joining(kWorker, 0)).is_ok()) << "the size is unknown";
  EXPECT_FALSE(Numbering(0, 0).add(joining(kWorker, 0, "m", 0xFFFFFFFF, 0xFFFFFFFF)).is_ok())
      << "no such job";
  EXPECT_FALSE(Numbering(1, 0).add(joining(kServer, -1)).is_ok()) << "a job without servers";
}

TEST(Numbering, NamesTheMissingNodes) {
  Numbering numbering(4, 2);
  EXPECT_EQ(numbering.missing(), "4 workers and 2 servers");
  ASSERT_TRUE(numbering.add(joining(kWorker, 2)).is_ok());
  ASSERT_TRUE(numbering.add(joining(kServer, 1)).is_ok());
  EXPECT_EQ(numbering.missing(), "rank 0, rank 1, rank 3 and server 0");
  ASSERT_TRUE(numbering.add(joining(kWorker, -1)).is_ok());
  EXPECT_EQ(numbering.missing(), "2 workers and server 0") << "the next node may join without a number";
}

}  // namespace
}  // namespace byteps::protocol
