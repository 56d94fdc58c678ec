// One memory for the staging of device tensors and all shared-memory connections of a process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/buffer_pool.h"
#include "transport/shm/buffer_leases.h"
#include "transport/shm/shared_pool.h"

namespace byteps::transport {
namespace {

class PoolLeases : public testing::Test {
 protected:
  PoolLeases()
      : memory_(4096),
        arena_(std::span(memory_).subspan(1024, 1024)),
        owner_(memory_, arena_),
        holder_(memory_) {}

  MutableBytes staged(size_t offset, size_t bytes) { return std::span(memory_).subspan(offset, bytes); }
  static size_t offset_in(const Reference& reference) { return offset_of(reference.lease); }

  alignas(64) std::vector<std::byte> memory_;
  MutableBytes arena_;
  LeaseOwner owner_;
  LeaseHolder holder_;
};

TEST_F(PoolLeases, WhatIsInTheSegmentIsLentWhereItIsAndAnsweredThere) {
  const MutableBytes tensor = staged(2048, 500);
  std::ranges::fill(tensor, std::byte{7});
  const auto lent = owner_.lease({tensor, tensor});
  ASSERT_TRUE(lent);
  EXPECT_EQ(offset_in(*lent), 2048u);
  auto leased = holder_.accept(*lent);
  ASSERT_TRUE(leased.is_ok()) << leased.status();
  EXPECT_EQ(leased->data.data(), tensor.data());
  std::ranges::fill(leased->reply_space, std::byte{9});
  const Reference returned = holder_.return_lease(lent->lease, leased->reply_space);
  EXPECT_EQ(owner_.answer(returned).value().data(), tensor.data());
  EXPECT_TRUE(owner_.take_back(returned.lease).is_ok());
  EXPECT_EQ(std::ranges::count(tensor, std::byte{9}), 500);
  EXPECT_TRUE(owner_.lease({tensor, tensor})) << "again";
}

TEST_F(PoolLeases, ItTakesNoRoomInTheArenaAndWaitsForNone) {
  const auto fills = owner_.lease({staged(0, 1024), {}});
  ASSERT_TRUE(fills);
  std::vector<std::byte> elsewhere(1024);
  ASSERT_TRUE(owner_.lease({elsewhere, {}}));
  EXPECT_FALSE(owner_.lease({elsewhere, {}})) << "the arena is full";
  EXPECT_TRUE(owner_.lease({staged(2048, 2048), staged(2048, 2048)}));
}

TEST_F(PoolLeases, PayloadsThatCannotBeLentAreCopied) {
  struct Case {
    const char* why;
    Payload payload;
  };
  std::vector<std::byte> elsewhere(64);
  const Case cases[] = {{"not in the segment", {elsewhere, {}}},
                        {"does not begin at a unit", {staged(2049, 64), {}}},
                        {"the answer has to go elsewhere", {staged(2048, 64), elsewhere}},
                        {"in the arena", {staged(1088, 64), {}}}};
  for (const Case& each : cases) {
    const auto lent = owner_.lease(each.payload);
    ASSERT_TRUE(lent) << each.why;
    EXPECT_GE(offset_in(*lent), 1024u) << each.why;
    EXPECT_LT(offset_in(*lent), 2048u) << each.why;
    EXPECT_TRUE(owner_.take_back(lent->lease).is_ok());
  }
  ASSERT_TRUE(owner_.lease({staged(2048, 64), {}}));
  const auto twice = owner_.lease({staged(2048, 64), {}});
  ASSERT_TRUE(twice);
  EXPECT_LT(offset_in(*twice), 2048u) << "it is lent already";
}

TEST_F(PoolLeases, OnlyWhatIsNeitherInTheSegmentNorFitsTheArenaCannotBeLeased) {
  std::vector<std::byte> large(1025);
  EXPECT_FALSE(owner_.may_lease({large, {}}));
  EXPECT_TRUE(owner_.may_lease({staged(2048, 1100), {}}));
  EXPECT_FALSE(owner_.may_lease({}));
}

TEST(SharedPool, ArenasAndStagingAreApartAndStagingIsAPoolOfBuffers) {
  auto pool = std::move(*SharedPool::create(8 << 20));
  const MutableBytes first = pool->take_arena(1 << 20), second = pool->take_arena(1 << 20);
  const MutableBytes staging = pool->staging();
  EXPECT_EQ(staging.size(), size_t{8} << 20);
  EXPECT_LE(first.data() + first.size(), second.data());
  EXPECT_LE(second.data() + second.size(), staging.data());
  while (!pool->take_arena(64 << 20).empty()) {
  }
  BufferPool buffers(staging);
  std::vector<BufferPool::Buffer> inside, outside;
  for (int i = 0; i < 12; ++i) {
    BufferPool::Buffer buffer = buffers.acquire(1 << 20);
    std::ranges::fill(buffer.bytes(), std::byte{1});
    const bool is_inside = buffer.bytes().data() >= staging.data() &&
                           buffer.bytes().data() + buffer.bytes().size() <= staging.data() + staging.size();
    (is_inside ? inside : outside).push_back(std::move(buffer));
  }
  EXPECT_GE(inside.size(), 4u);
  EXPECT_GE(outside.size(), 4u) << "when the region is used up, buffers are mapped";
  EXPECT_TRUE(Slab::find(inside.front().bytes()).has_value());
}

}  // namespace
}  // namespace byteps::transport
