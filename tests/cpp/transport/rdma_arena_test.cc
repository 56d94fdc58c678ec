#include "transport/rdma/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "support/fake_nic.h"

namespace byteps::transport::rdma {
namespace {

struct Card {
  explicit Card(const FakeNicOptions& options = {}) : nic(fabric.make_nic(options)), registrations(*nic) {}
  FakeFabric fabric;
  std::unique_ptr<FakeNic> nic;
  Registrations registrations;
};

TEST(RdmaArenaTest, ThousandsOfPiecesAreFewRegionsAndDoNotOverlap) {
  Card card;
  Arena arena(card.registrations);
  std::mt19937 random(1);
  std::vector<Arena::Allocation> pieces;
  size_t taken_bytes = 0;
  for (int i = 0; i < 4000; ++i) {
    auto piece = arena.take(1 + random() % 30'000);
    ASSERT_TRUE(piece.is_ok()) << piece.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->bytes().data()) % 4096, 0u);
    taken_bytes += (piece->bytes().size() + 4095) / 4096 * 4096;
    pieces.push_back(std::move(*piece));
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.bytes().data() < b.bytes().data(); });
  for (size_t i = 1; i < pieces.size(); ++i) {
    ASSERT_LE(pieces[i - 1].bytes().data() + pieces[i - 1].bytes().size(), pieces[i].bytes().data());
  }
  EXPECT_LE(card.nic->statistics().live_regions, 10u);
  EXPECT_LE(card.nic->statistics().live_bytes, 2 * taken_bytes + (1 << 20));
}

TEST(RdmaArenaTest, WhatWasGivenBackIsUsedAgain) {
  Card card;
  Arena arena(card.registrations);
  std::mt19937 random(2);
  std::vector<Arena::Allocation> pieces(64);
  for (int i = 0; i < 20'000; ++i) {
    auto piece = arena.take(1 + random() % 60'000);
    ASSERT_TRUE(piece.is_ok());
    std::memset(piece->bytes().data(), i, std::min<size_t>(piece->bytes().size(), 8));
    pieces[random() % pieces.size()] = std::move(*piece);
  }
  EXPECT_LE(card.nic->statistics().live_regions, 5u);
  EXPECT_EQ(card.nic->statistics().registrations, card.nic->statistics().live_regions);
}

TEST(RdmaArenaTest, PiecesMoveWithTheirMemory) {
  Card card;
  Arena arena(card.registrations);
  Arena::Allocation piece = std::move(*arena.take(5000));
  std::byte* const at = piece.bytes().data();
  Arena::Allocation moved = std::move(piece);
  EXPECT_FALSE(piece);
  EXPECT_EQ(moved.bytes().data(), at);
  EXPECT_EQ(moved.bytes().size(), 5000u);
  EXPECT_NE(arena.take(5000)->bytes().data(), at) << "still taken";
  moved = {};
  EXPECT_EQ(arena.take(5000)->bytes().data(), at);
}

TEST(RdmaArenaTest, TheLimitOfLockedMemoryIsUsedUpAndThenTold) {
  Card card({.memlock_bytes = 3 << 20});
  Arena arena(card.registrations);
  std::vector<Arena::Allocation> pieces;
  Status why;
  while (why.is_ok()) {
    auto piece = arena.take(128 << 10);
    if (piece) {
      pieces.push_back(std::move(*piece));
    } else {
      why = piece.status();
    }
  }
  EXPECT_EQ(pieces.size(), 24u) << "all that the limit allows";
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("limit of locked memory"), std::string::npos) << why;
  pieces.pop_back();
  EXPECT_TRUE(arena.take(100'000));
}

TEST(RdmaArenaTest, OneThatIsLargerThanAnySlabGetsItsOwn) {
  Card card;
  Arena arena(card.registrations);
  auto piece = arena.take(300 << 20);
  ASSERT_TRUE(piece.is_ok()) << piece.status();
  EXPECT_EQ(piece->bytes().size(), size_t{300} << 20);
  EXPECT_EQ(card.nic->statistics().live_regions, 1u);
}

}  // namespace
}  // namespace byteps::transport::rdma
