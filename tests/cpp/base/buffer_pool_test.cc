#include "base/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace byteps {
namespace {

TEST(BufferPoolTest, BuffersAreAlignedAndAsLargeAsAsked) {
  BufferPool pool;
  for (const size_t size : {0, 1, 4096, 4097, 100'000, 1 << 20, (1 << 20) + 1}) {
    BufferPool::Buffer buffer = pool.acquire(size);
    EXPECT_EQ(buffer.bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % 4096, 0u);
    // Writes all of it, so that the sanitizer finds overlaps.
    std::memset(buffer.bytes().data(), 1, size);
  }
}

TEST(BufferPoolTest, WhatWasGivenBackIsUsedAgainAndTheLastFirst) {
  BufferPool pool;
  BufferPool::Buffer first = pool.acquire(100'000);
  BufferPool::Buffer second = pool.acquire(100'000);
  std::byte* const warm = second.bytes().data();
  const size_t reserved = pool.reserved_bytes();
  first = {};
  second = {};
  EXPECT_EQ(pool.acquire(99'000).bytes().data(), warm);
  for (int round = 0; round < 100; ++round) {
    BufferPool::Buffer a = pool.acquire(100'000);
    BufferPool::Buffer b = pool.acquire(100'000);
    EXPECT_NE(a.bytes().data(), b.bytes().data());
  }
  EXPECT_EQ(pool.reserved_bytes(), reserved);
}

TEST(BufferPoolTest, RoundsUpByAtMostAQuarter) {
  for (size_t size = 4097; size < 10'000'000; size += size / 3) {
    BufferPool pool;
    pool.acquire(size);
    EXPECT_LE(pool.reserved_bytes(), size + size / 4 + 1) << size;
  }
}

TEST(BufferPoolTest, SizesThatChangeAllTheTimeNeedBoundedMemory) {
  BufferPool pool;
  size_t most = 0;
  for (size_t size = 300'000; size < 40'000'000; size += 37'111) {
    BufferPool::Buffer first = pool.acquire(size);
    BufferPool::Buffer second = pool.acquire(size);
    std::memset(first.bytes().data(), 1, 4096);
    std::memset(second.bytes().data() + size - 4096, 2, 4096);
    most = std::max(most, pool.reserved_bytes());
    EXPECT_LE(pool.reserved_bytes(), 5 * (size + size / 4) + (1 << 20)) << size;
  }
  EXPECT_LE(most, 200'000'000u);
}

TEST(BufferPoolTest, ASlabOfWhichSomethingIsInUseStays) {
  BufferPool pool;
  BufferPool::Buffer kept = pool.acquire(5000);
  std::memset(kept.bytes().data(), 7, 5000);
  for (size_t size = 100'000; size < 10'000'000; size += 100'000) pool.acquire(size);
  for (const std::byte each : kept.bytes()) ASSERT_EQ(each, std::byte{7});
}

TEST(BufferPoolTest, TwoKindsOfStepsThatAlternateKeepTheirBuffers) {
  BufferPool pool;
  pool.acquire(3'000'000);
  pool.acquire(5'000'000);
  const size_t reserved = pool.reserved_bytes();
  for (int i = 0; i < 10; ++i) {
    pool.acquire(3'000'000);
    pool.acquire(5'000'000);
    EXPECT_EQ(pool.reserved_bytes(), reserved);
  }
}

TEST(BufferPoolTest, MovingKeepsOneOwner) {
  BufferPool pool;
  BufferPool::Buffer a = pool.acquire(10);
  BufferPool::Buffer b = std::move(a);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move): that is the point
  EXPECT_FALSE(b.empty());
  b = pool.acquire(20);
  EXPECT_EQ(pool.reserved_bytes(), 2u * 4096);
}

}  // namespace
}  // namespace byteps
