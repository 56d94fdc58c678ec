#include "protocol/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "protocol/message.h"

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
    const Partitioning partition_scale = cut_evenly(bytes, wanted_bytes);
    ASSERT_LE(partition_scale.count(), 20u);
    uint64_t next = 0;
    for (uint32_t p = 0; p < partition_scale.count(); ++p) {
      ASSERT_EQ(partition_scale.offset(p), next);
      ASSERT_LE(partition_scale.size(p), most_bytes);
      ASSERT_TRUE(partition_scale.size(p) % kPageBytes == 0 || p + 1 == partition_scale.count());
      next += partition_scale.size(p);
    }
    ASSERT_EQ(next, bytes);
    ASSERT_EQ(partition_scale.size(partition_scale.count() - 1) == 0, bytes == 0) << "an empty last piece";
  }
}

TEST(Partitioning, PiecesAreNearlyEqual) {
  // 9 MiB at 4 MiB wanted: three of 3 MiB, not 4 + 4 + 1.
  const Partitioning partition_scale = cut_evenly(9 << 20, 4 << 20);
  EXPECT_EQ(partition_scale.count(), 3u);
  EXPECT_EQ(partition_scale.size(0), 3u << 20);
  EXPECT_EQ(partition_scale.size(2), 3u << 20);
}

TEST(Partitioning, EmptyTensorHasOneEmptyPiece) {
  const Partitioning partition_scale = cut_evenly(0, 4 << 20);
  EXPECT_EQ(partition_scale.count(), 1u);
  EXPECT_EQ(partition_scale.offset(0), 0u);
  EXPECT_EQ(partition_scale.size(0), 0u);
  EXPECT_GT(partition_scale.partition_bytes, 0u);
}

TEST(Partitioning, RefusesSizesThatNoTensorHas) {
  EXPECT_EQ(check_tensor_bytes(6, DType::kFloat32).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check_tensor_bytes(kMaxTensorBytes + 8, DType::kInt64).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_tensor_bytes(kMaxTensorBytes, DType::kInt64).is_ok());
}

TEST(Partitioning, PiecesOfLargeTensorsAreLargerSoThatTheyAreNotTooMany) {
  const uint64_t most = kPageBytes * kMaxPartitions;
  EXPECT_EQ(cut_evenly(most, 1).count(), kMaxPartitions);
  for (const uint64_t bytes : {most + 1, 3 * most, uint64_t{65} << 30, kMaxTensorBytes}) {
    for (const uint64_t wanted_bytes : {uint64_t{1}, uint64_t{256} << 10, kMaxTensorBytes, UINT64_MAX}) {
      const Partitioning partition_scale = cut_evenly(bytes, wanted_bytes);
      EXPECT_LE(partition_scale.count(), kMaxPartitions) << bytes;
      EXPECT_EQ(partition_scale.offset(partition_scale.count() - 1) +
                    partition_scale.size(partition_scale.count() - 1),
                bytes);
    }
  }
  const std::vector<ReducerHost> one_machine(1);
  for (uint8_t partition_scale = 0; partition_scale <= kMaxPartitionScale; ++partition_scale)
    EXPECT_LE(PartitionRule(one_machine, 0).partition(100ull << 30, partition_scale).count(), kMaxPartitions);
}

TEST(Partitioning, SizesReadWell) {
  EXPECT_EQ(describe_elements(100, DType::kFloat32), "25 elements of float32");
}

TEST(PartitionRule, ByTensorSitesAndSpeed) {
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
           Case{reducer_hosts(4, 200), 256 << 20, 512 * kib},     // 128 for each reducer_host
           Case{reducer_hosts(16, 100), 64 << 20, 128 * kib},     // not less
           Case{reducer_hosts(4, 200), 1 << 20, 128 * kib},       // small tensors
           Case{reducer_hosts(4, 200), 4ull << 30, 1024 * kib},   // not more
           Case{reducer_hosts(4, 100'000), 64 << 20, 512 * kib},  // fast cards
           Case{reducer_hosts(4, 0), 64 << 20, 256 * kib},        // nobody knows
           Case{reducer_hosts(1, 200), 64 << 20, 256 * kib},      // one machine
       }) {
    EXPECT_EQ(PartitionRule(job.reducer_hosts, 0).wanted_bytes(job.tensor_bytes), job.wanted_bytes);
    EXPECT_EQ(PartitionRule(job.reducer_hosts, 12345).wanted_bytes(job.tensor_bytes), 12345u)
        << "as the user says";
  }
}

}  // namespace
}  // namespace byteps::protocol
