#include "base/slab.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace byteps {
namespace {

TEST(SlabTest, IsWritableAndAlignedAndZeroed) {
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{100'000}, size_t{2} << 20, (size_t{5} << 20) + 1}) {
    Slab slab(bytes);
    ASSERT_GE(slab.bytes().size(), bytes);
    EXPECT_EQ(slab.bytes().size() % 4096, 0u);
    const size_t alignment = bytes >= size_t{2} << 20 ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.bytes().data()) % alignment, 0u);
    EXPECT_EQ(slab.bytes().back(), std::byte{0});
    std::memset(slab.bytes().data(), 1, slab.bytes().size());
  }
}

TEST(SlabTest, IsFoundByWhatLiesInIt) {
  Slab slab(3 * 4096);
  const auto whole = Slab::find(slab.bytes());
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes.data(), slab.bytes().data());
  EXPECT_EQ(Slab::find(slab.bytes().subspan(5000, 10))->number, whole->number);
  // Extends beyond the slab.
  EXPECT_FALSE(Slab::find(Bytes(slab.bytes().data() + 100, slab.bytes().size())));
  std::byte other[16];
  EXPECT_FALSE(Slab::find(Bytes(other)));
}

TEST(SlabTest, AnotherOneAtTheSameAddressHasAnotherNumber) {
  auto slab = std::make_unique<Slab>(1 << 20);
  const std::byte* const address = slab->bytes().data();
  const uint64_t number = Slab::find(slab->bytes())->number;
  slab.reset();
  EXPECT_FALSE(Slab::find(Bytes(address, 1)));
  slab = std::make_unique<Slab>(1 << 20);
  EXPECT_NE(Slab::find(slab->bytes())->number, number);
}

TEST(SlabTest, WhoWatchesHearsOfThoseThatGo) {
  struct Observer final : SlabObserver {
    void on_slab_gone(uint64_t number) override { gone.push_back(number); }
    std::vector<uint64_t> gone;
  } observer;
  Slab stays(4096);
  auto goes = std::make_unique<Slab>(4096);
  const uint64_t number = Slab::find(goes->bytes())->number;
  Slab::watch(&observer);
  goes.reset();
  EXPECT_EQ(observer.gone, std::vector<uint64_t>{number});
  Slab::unwatch(&observer);
  {
    Slab unseen(4096);
  }
  EXPECT_EQ(observer.gone.size(), 1u);
}

}  // namespace
}  // namespace byteps
