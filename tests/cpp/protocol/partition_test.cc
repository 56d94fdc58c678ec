#include "protocol/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "protocol/message.h"
#include "protocol/tree.h"

namespace byteps::protocol {
namespace {

TEST(Partitioning, CoversEveryByteOnce) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 5'000; ++i) {
    const auto dtype = static_cast<DType>(1 + random() % 8);
    const uint64_t wanted_bytes = random() % (1u << (random() % 20));
    const uint64_t most_bytes =
        std::max<uint64_t>(1, (wanted_bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
    const uint64_t bytes = random() % (20 * most_bytes) / size_of(dtype) * size_of(dtype);
    const Partitioning parts = cut_evenly(bytes, wanted_bytes);
    ASSERT_LE(parts.count(), 20u);
    uint64_t next = 0;
    for (uint32_t p = 0; p < parts.count(); ++p) {
      ASSERT_EQ(parts.offset(p), next);
      ASSERT_LE(parts.size(p), most_bytes);
      ASSERT_TRUE(parts.size(p) % kPageBytes == 0 || p + 1 == parts.count());
      next += parts.size(p);
    }
    ASSERT_EQ(next, bytes);
    ASSERT_EQ(parts.size(parts.count() - 1) == 0, bytes == 0) << "an empty last partition";
  }
}

TEST(Partitioning, PartitionsAreNearlyEqual) {
  // 9 MiB with 4 MiB wanted: three of 3 MiB, not 4 + 4 + 1.
  const Partitioning parts = cut_evenly(9 << 20, 4 << 20);
  EXPECT_EQ(parts.count(), 3u);
  EXPECT_EQ(parts.size(0), 3u << 20);
  EXPECT_EQ(parts.size(2), 3u << 20);
}

TEST(Partitioning, EmptyTensorHasOneEmptyPartition) {
  const Partitioning parts = cut_evenly(0, 4 << 20);
  EXPECT_EQ(parts.count(), 1u);
  EXPECT_EQ(parts.offset(0), 0u);
  EXPECT_EQ(parts.size(0), 0u);
  EXPECT_GT(parts.partition_bytes, 0u);
}

TEST(Partitioning, RefusesSizesThatNoTensorHas) {
  EXPECT_EQ(check_tensor_bytes(6, DType::kFloat32).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check_tensor_bytes(kMaxTensorBytes + 8, DType::kInt64).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_tensor_bytes(kMaxTensorBytes, DType::kInt64).is_ok());
}

TEST(Partitioning, PartitionsOfLargeTensorsAreLargerSoThatTheyAreNotTooMany) {
  const uint64_t most = kPageBytes * kMaxPartitions;
  EXPECT_EQ(cut_evenly(most, 1).count(), kMaxPartitions);
  for (const uint64_t bytes : {most + 1, 3 * most, uint64_t{65} << 30, kMaxTensorBytes}) {
    for (const uint64_t wanted_bytes : {uint64_t{1}, uint64_t{256} << 10, kMaxTensorBytes, UINT64_MAX}) {
      const Partitioning parts = cut_evenly(bytes, wanted_bytes);
      EXPECT_LE(parts.count(), kMaxPartitions) << bytes;
      EXPECT_EQ(parts.offset(parts.count() - 1) + parts.size(parts.count() - 1), bytes);
    }
  }
  const std::vector<ReducerHost> one_machine(1);
  for (uint8_t partition_scale = 0; partition_scale <= kMaxPartitionScale; ++partition_scale)
    EXPECT_LE(PartitionRule(one_machine, 0).partition(100ull << 30, partition_scale).count(), kMaxPartitions);
}

TEST(Partitioning, SizesReadWell) {
  EXPECT_EQ(describe_elements(100, DType::kFloat32), "25 elements of float32");
}

TEST(PartitionRule, DependsOnTensorHostsAndSpeed) {
  const auto reducer_hosts = [](size_t count, double mbps) {
    return std::vector<ReducerHost>(count, ReducerHost{.nic_mbps = mbps});
  };
  struct Case {
    std::vector<ReducerHost> reducer_hosts;
    uint64_t tensor_bytes;
    uint64_t wanted_bytes;
  };
  const uint64_t kib = 1024;
  for (const Case& job : {
           Case{reducer_hosts(4, 200), 256 << 20, 512 * kib},  // 128 for each reducer host
           Case{reducer_hosts(16, 100), 64 << 20, 32 * kib},   // the minimum
           Case{reducer_hosts(4, 200), 1 << 20, 32 * kib},     // small tensors
           Case{reducer_hosts(4, 600), 1 << 20, 75'000},       // a millisecond of the card
           Case{reducer_hosts(4, 2000), 1 << 20, 128 * kib},
           Case{reducer_hosts(4, 200), 4ull << 30, 1024 * kib},     // the maximum
           Case{reducer_hosts(4, 100'000), 64 << 20, 512 * kib},    // fast cards
           Case{reducer_hosts(32, 100'000), 64 << 20, 512 * kib},   // many machines: the same,
           Case{reducer_hosts(128, 100'000), 64 << 20, 128 * kib},  // and less for more of them
           Case{reducer_hosts(512, 100'000), 64 << 20, 32 * kib},
           Case{reducer_hosts(16384, 100'000), 64 << 20, 16 * kib},  // the least of all
           Case{reducer_hosts(512, 0), 64 << 20, 32 * kib},
           Case{reducer_hosts(4, 0), 64 << 20, 256 * kib},   // unknown speed
           Case{reducer_hosts(1, 200), 1 << 20, 256 * kib},  // one machine: in the cache
           Case{reducer_hosts(1, 200), 8 << 20, 512 * kib},
           Case{reducer_hosts(1, 200), 64 << 20, 1024 * kib},
       }) {
    EXPECT_EQ(PartitionRule(job.reducer_hosts, 0).wanted_bytes(job.tensor_bytes), job.wanted_bytes);
    EXPECT_EQ(PartitionRule(job.reducer_hosts, 12345).wanted_bytes(job.tensor_bytes), 12345u)
        << "as the user says";
  }
}

// Each connection between two machines has only its part of the card.
TEST(PartitionRule, OfATreeDependsOnRanksAndShards) {
  const auto wanted_bytes = [](uint32_t machines, uint32_t ranks, uint32_t shards) {
    std::vector<NodeInfo> nodes;
    for (uint32_t rank = 0; rank < machines * ranks; ++rank) {
      NodeInfo& node = nodes.emplace_back();
      node.machine = std::to_string(rank / ranks);
      node.nic_mbps = 100'000;
      node.endpoints = {{"tcp", std::vector<std::string>(shards)}};
    }
    return PartitionRule(Tree(nodes, machines * ranks), 0).wanted_bytes(16 << 20);
  };
  EXPECT_EQ(wanted_bytes(8, 1, 1), 512u << 10);
  EXPECT_EQ(wanted_bytes(8, 2, 4), 256u << 10);
  EXPECT_EQ(wanted_bytes(8, 8, 4), 64u << 10);
  EXPECT_EQ(wanted_bytes(32, 8, 4), 64u << 10) << "two ranks have connections";
  EXPECT_EQ(wanted_bytes(128, 8, 4), 32u << 10) << "one rank has connections";
  EXPECT_EQ(wanted_bytes(1, 8, 4), 1u << 20) << "one machine";
}

}  // namespace
}  // namespace byteps::protocol
