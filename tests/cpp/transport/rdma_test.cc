// Guarantees of the RDMA transport beyond transport.h: payloads are not copied, few regions are
// registered, and it falls back to copies if memory cannot be registered.
#include <algorithm>
#include <cstring>

#include "base/slab.h"
#include "transport/rdma_rounds.h"

namespace byteps::transport::rdma {
namespace {

TEST_F(RdmaRoundsTest, AfterTheFirstRoundNothingIsAskedForOrMadeKnownAgain) {
  const Slab memory(256 * kSpacingBytes);
  tensors_in(memory.bytes(), 256);
  set_up_and_connect();
  start_both();
  round(256);
  const auto receive_buffers = take_receive_buffers();
  ASSERT_EQ(receive_buffers.size(), 256u);
  const uint64_t made =
      registration_counts(*transports_[kA]).made + registration_counts(*transports_[kB]).made;
  EXPECT_LE(made, 8u);
  for (int again = 0; again < 9; ++again) {
    const uint64_t before = fabric_.statistics().bytes;
    round(256);
    EXPECT_EQ(take_receive_buffers(), receive_buffers);
    // The payloads, and in each direction one record for each: 48 bytes and a head of 3.
    EXPECT_EQ(fabric_.statistics().bytes - before, 256 * 2 * (kTensorBytes + 48 + 3));
  }
  EXPECT_EQ(num_direct_, 2560u);
  EXPECT_EQ(registration_counts(*transports_[kA]).made + registration_counts(*transports_[kB]).made, made);
}

TEST_F(RdmaRoundsTest, OtherMemoryIsMadeKnownForEachFrameAndForgotten) {
  std::vector<std::byte> memory(32 * kSpacingBytes);
  tensors_in(memory, 32);
  set_up_and_connect();
  const uint64_t before = card(kA).statistics().live_regions;
  start_both();
  for (int i = 0; i < 5; ++i) round(32);
  EXPECT_EQ(num_direct_, 160u);
  EXPECT_EQ(card(kA).statistics().live_regions, before);
  EXPECT_LE(card(kA).statistics().registrations, before + 2 * 160);
}

TEST_F(RdmaRoundsTest, PlacesMayGrowAndShrink) {
  most_bytes_ = 300'000;
  const Slab memory(4 * most_bytes_);
  set_up_and_connect();
  start_both();
  for (const size_t bytes : {10'000, 5'000, 20'000, 100, 20'000, 300'000, 4'097, 4'096, 299'999}) {
    tensors_.clear();
    for (size_t i = 0; i < 4; ++i) tensors_.push_back(memory.bytes().subspan(i * most_bytes_, bytes));
    ASSERT_NO_FATAL_FAILURE(round(4)) << bytes;
  }
}

TEST_F(RdmaRoundsTest, WithoutMemoryThatTheWorkersCardMayKnowEverythingArrives) {
  // Each frame needs a region, and only a few fit.
  std::vector<std::byte> memory(32 * kSpacingBytes);
  tensors_in(memory, 32);
  set_up_and_connect({.cards = {{.memlock_bytes = (1 << 20) + 3 * 4096}}}, {});
  start_both();
  for (int i = 0; i < 5; ++i) round(32);
  EXPECT_LT(num_direct_, 160u);
}

TEST_F(RdmaRoundsTest, WithoutMemoryThatTheServersCardMayKnowEverythingArrives) {
  const Slab memory(256 * kSpacingBytes);
  tensors_in(memory.bytes(), 256);
  // The limit covers the rings and some receive buffers.
  set_up_and_connect({}, {.cards = {{.memlock_bytes = 1 << 20}}});
  start_both();
  for (int i = 0; i < 3; ++i) round(256);
  const size_t in_place = take_receive_buffers().size();
  EXPECT_GT(in_place, 0u);
  EXPECT_LT(in_place, 3 * 256u);
}

TEST_F(RdmaRoundsTest, WithoutMemoryAtEitherEndEverythingArrives) {
  const Slab memory(64 * kSpacingBytes);
  tensors_in(memory.bytes(), 64);
  set_up_and_connect({.cards = {{.memlock_bytes = 1 << 20}}}, {.cards = {{.memlock_bytes = 1 << 20}}});
  start_both();
  for (int i = 0; i < 5; ++i) round(64);
  EXPECT_EQ(num_direct_, 0u);
}

TEST_F(RdmaRoundsTest, FiftyConnectionsNeedFewRegions) {
  const Slab memory(32 * kSpacingBytes);
  tensors_in(memory.bytes(), 32);
  set_up_and_connect();
  std::vector<std::array<std::unique_ptr<Connection>, 2>> all;
  for (int i = 0; i < 50; ++i) {
    start_both();
    round(32);
    all.push_back(std::exchange(ends_, {}));
    ASSERT_NO_FATAL_FAILURE(connect());
  }
  EXPECT_EQ(num_direct_, 50 * 32u);
  for (const int side : {kA, kB}) {
    EXPECT_LE(card(side).statistics().live_regions, 10u);
    run_on(loop(side), [&] {
      for (auto& ends : all) ends[side].reset();
    });
  }
}

TEST_F(RdmaRoundsTest, AThousandConnectionsLeaveNothingBehind) {
  const Slab memory(2 * kSpacingBytes);
  tensors_in(memory.bytes(), 2);
  set_up();
  size_t before = 0;
  std::array<FakeNicStatistics, 2> cards_before;
  for (int i = 0; i <= 1000; ++i) {
    ASSERT_NO_FATAL_FAILURE(connect());
    if (i % 20 == 0) {
      start_both();
      round(2);
    }
    destroy(i % 2);
    destroy(1 - i % 2);
    if (i != 20 && i != 1000) continue;
    for (const int side : {kA, kB}) {
      ASSERT_TRUE(no_queue_pair_is_left(side));
      if (i == 20) cards_before[side] = card(side).statistics();
      EXPECT_LE(card(side).statistics().live_regions, cards_before[side].live_regions);
      EXPECT_LE(card(side).statistics().live_bytes, cards_before[side].live_bytes);
    }
    if (i == 20) before = open_descriptors();
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << open_descriptors() << " were " << before;
}

}  // namespace
}  // namespace byteps::transport::rdma
