// Guarantees of the RDMA transport beyond transport.h: payloads are not copied, few regions are
// registered, and it falls back to copies if memory cannot be registered.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/slab.h"
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {
namespace {

constexpr size_t kTensorBytes = 20'000;
constexpr size_t kSpacingBytes = 5 * 4096;

// A worker (kA) with several tensors, and a server (kB) that answers with each byte changed.
class RdmaRoundsTest : public RdmaTest {
 protected:
  RdmaRoundsTest() {
    recorders_[kB].keeps_leases = true;
    recorders_[kB].head = [this](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      if (arrival.payload.empty()) {
        copied_.resize(arrival.payload_bytes);
        return ReceiveBuffer::at(copied_);
      }
      receive_buffers_.update(
          [&](auto& receive_buffers) { receive_buffers.push_back(arrival.payload.data()); });
      return ReceiveBuffer::in_place();
    };
    recorders_[kB].frame = [this](Connection& connection, const Arrival& arrival, Bytes payload) {
      const size_t i = std::stoul(std::string(as_text(arrival.head)));
      const MutableBytes answer =
          answers_.bytes().subspan(i * std::max(payload.size(), kSpacingBytes), payload.size());
      std::transform(payload.begin(), payload.end(), answer.begin(), [](std::byte b) { return ~b; });
      connection.send(arrival.head, {.data = answer, .reply_space = {}, .returns_lease = arrival.lease},
                      sent_.expect_one());
      return Status::ok();
    };
    recorders_[kA].head = [this](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      const size_t i = std::stoul(std::string(as_text(arrival.head)));
      num_direct_ += arrival.payload.data() == tensors_.at(i).data();
      return ReceiveBuffer::at(tensors_.at(i));
    };
  }

  // One round trip of all tensors at once.
  void round(size_t num_tensors) {
    answered_ += num_tensors;
    for (size_t i = 0; i < num_tensors; ++i) {
      const MutableBytes tensor = tensors_.at(i);
      std::memcpy(tensor.data(), pattern(tensor.size(), i).data(), tensor.size());
    }
    run_on(loop(kA), [&] {
      for (size_t i = 0; i < num_tensors; ++i) {
        const MutableBytes tensor = tensors_.at(i);
        end(kA).send(as_bytes(std::to_string(1000 + i).substr(1)),
                     {.data = tensor, .reply_space = tensor, .reuse_key = i + 1}, sent_.expect_one());
      }
    });
    ASSERT_TRUE(recorders_[kA].wait_for_frames(answered_));
    expect_all_sent();
    for (size_t i = 0; i < num_tensors; ++i) {
      const MutableBytes tensor = tensors_.at(i);
      std::string expected = pattern(tensor.size(), i);
      for (char& c : expected) c = static_cast<char>(~c);
      ASSERT_TRUE(as_text(tensor) == expected) << i;
    }
  }
  void tensors_in(MutableBytes memory, size_t num_tensors) {
    for (size_t i = 0; i < num_tensors; ++i)
      tensors_.push_back(memory.subspan(i * kSpacingBytes, kTensorBytes));
  }
  std::vector<const void*> take_receive_buffers() {
    auto receive_buffers = receive_buffers_.get();
    receive_buffers_.update([](auto& all) { all.clear(); });
    return receive_buffers;
  }

  Slab answers_{256 * kSpacingBytes};
  std::vector<MutableBytes> tensors_;
  std::vector<std::byte> copied_;
  Watched<std::vector<const void*>> receive_buffers_;
  std::atomic<size_t> num_direct_ = 0;  // number of answers that were written to their reply space
  size_t answered_ = 0;
};

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
  const Slab memory(4 * 300'000);
  set_up_and_connect();
  start_both();
  for (const size_t bytes : {10'000, 5'000, 20'000, 100, 20'000, 300'000, 4'097, 4'096, 299'999}) {
    tensors_.clear();
    for (size_t i = 0; i < 4; ++i) tensors_.push_back(memory.bytes().subspan(i * 300'000, bytes));
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
