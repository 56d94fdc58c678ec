#include "transport/rdma/buffer_leases.h"

#include <gtest/gtest.h>

namespace byteps::transport::rdma {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// The leases of one end, and what the other end holds for it.
class BufferLeasesTest : public testing::Test {
 protected:
  // A frame that is written to a receive buffer, answered, and returned.
  void use(uint64_t reuse_key, uint64_t bytes) {
    leases_.grant(begin(reuse_key, bytes), {});
    end();
  }
  LeaseId begin(uint64_t reuse_key, uint64_t bytes) {
    last_ = leases_.reserve(reuse_key, bytes);
    answer();
    return last_;
  }
  void end() {
    EXPECT_TRUE(leases_.take_back(last_).is_ok());
    answer();
  }
  // The other end does what the records say.
  void answer() {
    for (const Record& record : std::exchange(controls_, {})) {
      if (record.type == RecordType::kRelease) {
        held_bytes_ -= held_.at(record.lease);
        held_.erase(record.lease);
        continue;
      }
      ASSERT_EQ(record.type, RecordType::kReserve);
      ++requests_;
      held_[record.lease] = record.payload_bytes;
      held_bytes_ += record.payload_bytes;
      most_bytes_ = std::max(most_bytes_, held_bytes_);
      EXPECT_TRUE(
          leases_.on_reserved({.type = RecordType::kReserved, .lease = record.lease, .address = 1}).is_ok());
    }
  }

  std::deque<Record> controls_;
  BufferLeases leases_{controls_, "peer"};
  LeaseId last_ = kNoLease;
  std::unordered_map<LeaseId, uint64_t> held_;
  uint64_t held_bytes_ = 0;
  uint64_t most_bytes_ = 0;
  size_t requests_ = 0;
};

TEST_F(BufferLeasesTest, KeysThatAreUsedOnceNeedBoundedMemory) {
  for (uint64_t key = 1; key <= 100'000; ++key) use(key, kMiB);
  EXPECT_LE(most_bytes_, BufferLeases::kLeastKeptBytes + kMiB);
  EXPECT_EQ(held_bytes_, leases_.kept_bytes());
}

TEST_F(BufferLeasesTest, KeysThatAreUsedAgainKeepTheirBuffers) {
  for (int step = 0; step < 4; ++step) {
    for (uint64_t key = 1; key <= 200; ++key) use(key, kMiB);
  }
  requests_ = 0;
  for (uint64_t key = 1; key <= 200; ++key) use(key, kMiB);
  EXPECT_EQ(requests_, 0u);
  EXPECT_EQ(held_bytes_, 200 * kMiB);
}

TEST_F(BufferLeasesTest, BuffersOfOtherPartitionSizesMakeRoom) {
  constexpr uint64_t kModelBytes = 64 * kMiB;
  for (uint64_t scale = 0; scale < 8; ++scale) {
    const uint64_t bytes = kMiB / 16 << scale;
    for (int step = 0; step < 6; ++step) {
      for (uint64_t partition = 0; partition < kModelBytes / bytes; ++partition)
        use((scale + 1) << 18 | partition, bytes);
    }
  }
  EXPECT_LE(most_bytes_, kModelBytes + 8 * kMiB);
}

TEST_F(BufferLeasesTest, SizesThatGrowAllTheTimeNeedNoMoreThanTheyHave) {
  for (uint64_t bytes = 10'000; bytes < 2 * kMiB; bytes += 4096) {
    for (uint64_t key = 1; key <= 8; ++key) use(key, bytes);
  }
  EXPECT_LE(most_bytes_, 8 * 2 * kMiB + BufferLeases::kLeastKeptBytes);
  EXPECT_LE(held_.size(), 8u);
}

TEST_F(BufferLeasesTest, BuffersInUseAreNotGivenBack) {
  const LeaseId busy = begin(1, kMiB);
  leases_.grant(busy, {});
  for (uint64_t key = 2; key < 100; ++key) use(key, kMiB);
  EXPECT_TRUE(held_.contains(busy));
  last_ = busy;
  end();
  use(1, kMiB);
  EXPECT_TRUE(held_.contains(busy)) << "the same buffer again";
}

}  // namespace
}  // namespace byteps::transport::rdma
