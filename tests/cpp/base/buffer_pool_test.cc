#include "base/buffer_pool.h"

#include <gtest/gtest.h>

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
