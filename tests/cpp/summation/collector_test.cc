// What all levels of a shard have in common: sums in blocks, and leased memory.
#include "summation/collector.h"

#include <numeric>

#include "summation/harness.h"

namespace byteps::summation {
namespace {

constexpr TimeUs kReclaimUs = 5'000;             // as in collector.cc
constexpr size_t kLargeBytes = (24 << 10) + 16;  // several blocks, the last one small

constexpr size_t kLeaseBytes = 64;  // of one contribution: a cache line
static_assert(kCount * sizeof(int32_t) <= kLeaseBytes);

class CollectorTest : public RootFixture {
 protected:
  // Rank 0 can lease the memory of so many contributions.
  void replace_rank_0(size_t contributions = 1) {
    on_loop([this] { peers_[0]->close(); });
    peers_[0] = connect_shm(0, contributions * kLeaseBytes);
    on_loop([this] { peers_[0]->hello(); });
  }
  void contribute(uint32_t rank, uint32_t tensor, int32_t value) {
    DataHead head = peers_[rank]->head(1);
    head.key.tensor = tensor;
    peers_[rank]->values_ = Values(kCount, value);
    peers_[rank]->send(head, std::as_bytes(std::span(peers_[rank]->values_)));
  }
  // Returns when all timers of the shard that are due within this time have run.
  void pass(TimeUs time_us) {
    EventFlag passed;
    on_loop([&] { loop_->run_at(now_us() + time_us, [&] { passed.set(); }); });
    passed.wait(kNever);
  }
  // Waits until the rank has this number of answers.
  bool wait_for_answers(uint32_t rank, size_t count) {
    const TimeUs deadline_us = now_us() + 10'000'000;
    while (now_us() < deadline_us) {
      size_t answers = 0;
      on_loop([&] { answers = peers_[rank]->answers_.size(); });
      if (answers >= count) return true;
    }
    return false;
  }
};

TEST_F(CollectorTest, ASumOfSeveralBlocksIsWholeInEveryReplySpace) {
  Values first(kLargeBytes / sizeof(int32_t));
  std::iota(first.begin(), first.end(), 0);
  Values expected(first);
  for (int32_t& value : expected) value *= 2;
  on_loop([&] {
    for (const auto& peer : peers_) {
      peer->values_ = first;
      DataHead head = peer->head(1);
      head.bytes = kLargeBytes;
      peer->send(head, std::as_bytes(std::span(peer->values_)), true);
    }
  });
  for (const auto& peer : peers_) EXPECT_EQ(peer->values_, expected);
  EXPECT_EQ(metrics_.sum_bytes.load(), kLargeBytes);
}

TEST_F(CollectorTest, EachAnswerReturnsTheLeaseOfItsContribution) {
  replace_rank_0();
  for (uint32_t round = 1; round <= 4; ++round) {
    const auto value = static_cast<int32_t>(round);
    on_loop([&] {
      peers_[0]->contribute(round, Values(kCount, value), round % 2 == 0);
      peers_[1]->contribute(round, Values(kCount, 10));
    });
    ASSERT_TRUE(wait_for_answers(0, round)) << "its memory is still leased";
    EXPECT_EQ(result_of(*peers_[0], round - 1), Values(kCount, 10 + value));
  }
}

TEST_F(CollectorTest, AFailureReturnsTheLeaseAsWell) {
  replace_rank_0();
  for (uint32_t round = 1; round <= 4; ++round) {
    on_loop([&] {
      peers_[0]->contribute(round, {1, 1, 1, 1}, true);
      peers_[1]->op_ = ReduceOp::kMax;
      peers_[1]->contribute(round, {1, 1, 1, 1});
    });
    ASSERT_TRUE(wait_for_answers(0, round)) << "its memory is still leased";
    EXPECT_EQ(peers_[0]->answers_.back().type, DataType::kFailed);
  }
}

// The second contribution needs the memory of the first, which still waits for rank 1.
TEST_F(CollectorTest, AStarvingChildGetsMemoryBackAndItsContributionStillCounts) {
  replace_rank_0();
  on_loop([&] { contribute(0, 7, 7); });
  on_loop([&] { contribute(0, 8, 8); });
  on_loop([&] { contribute(1, 8, 100); });
  ASSERT_TRUE(wait_for_answers(0, 1)) << "the second contribution has not been sent";
  on_loop([&] { contribute(1, 7, 100); });
  ASSERT_TRUE(wait_for_answers(0, 2));
  EXPECT_EQ(result_of(*peers_[0], 0), Values(kCount, 108));
  EXPECT_EQ(result_of(*peers_[0], 1), Values(kCount, 107));
  EXPECT_EQ(metrics_.reclaimed.load(), 1u);
}

// Each answer makes room for the next contribution, so none has to be copied: the memory of this
// child is full all the time, but it does not wait for anybody.
TEST_F(CollectorTest, AChildWhoseContributionsAreAnsweredKeepsItsLeases) {
  replace_rank_0(2);
  const TimeUs begun_us = now_us();
  for (uint32_t tensor = 1; tensor <= 3; ++tensor) {
    on_loop([&] { contribute(0, tensor, 7); });
  }
  on_loop([&] { contribute(1, 1, 100); });
  ASSERT_TRUE(wait_for_answers(0, 1));
  if (now_us() - begun_us >= kReclaimUs) return;  // the machine was too busy to answer in time
  pass(3 * kReclaimUs);
  EXPECT_EQ(metrics_.reclaimed.load(), 0u);
  // The fourth has no room, and nothing is answered.
  on_loop([&] { contribute(0, 4, 7); });
  on_loop([&] { contribute(1, 4, 100); });
  ASSERT_TRUE(wait_for_answers(0, 2));
  EXPECT_EQ(metrics_.reclaimed.load(), 2u);
}

}  // namespace
}  // namespace byteps::summation
