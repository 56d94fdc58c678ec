#include "protocol/byte_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace byteps::protocol {
namespace {

TEST(ByteRanges, AddedRangesThatTouchBecomeOne) {
  ByteRanges ranges;
  add(ranges, {10, 5});
  add(ranges, {20, 5});
  EXPECT_EQ(ranges, (ByteRanges{{10, 5}, {20, 5}}));
  add(ranges, {0, 0});
  EXPECT_EQ(ranges.size(), 2u) << "an empty one";
  add(ranges, {15, 5});
  EXPECT_EQ(ranges, (ByteRanges{{10, 15}}));
  EXPECT_TRUE(contains(ranges, {12, 13}));
  EXPECT_FALSE(contains(ranges, {12, 14}));
  EXPECT_FALSE(contains(ranges, {9, 2}));
  EXPECT_EQ(gaps(ranges, 30), (ByteRanges{{0, 10}, {25, 5}}));
  EXPECT_TRUE(gaps({}, 0).empty());
}

TEST(ByteRanges, KnowsWhatIsOrdered) {
  EXPECT_TRUE(is_ordered({}));
  EXPECT_TRUE(is_ordered({{0, 4}, {5, 4}}));
  EXPECT_FALSE(is_ordered({{0, 4}, {4, 4}})) << "they touch";
  EXPECT_FALSE(is_ordered({{5, 4}, {0, 4}}));
  EXPECT_FALSE(is_ordered({{0, 0}}));
}

TEST(ByteRanges, AreLikeASetOfBytes) {
  constexpr uint64_t kBytes = 40;
  std::mt19937 random(1);
  for (int run = 0; run < 500; ++run) {
    ByteRanges ranges;
    std::vector<bool> model(kBytes);
    for (int i = 0; i < 12; ++i) {
      const uint64_t offset = random() % kBytes;
      const ByteRange range{offset, random() % std::min<uint64_t>(8, kBytes - offset + 1)};
      add(ranges, range);
      for (uint64_t byte = range.offset; byte < range.end(); ++byte) model[byte] = true;
      ASSERT_TRUE(is_ordered(ranges));
      const ByteRanges missing = gaps(ranges, kBytes);
      for (uint64_t byte = 0; byte < kBytes; ++byte) {
        ASSERT_EQ(contains(ranges, {byte, 1}), model[byte]) << byte;
        ASSERT_EQ(contains(missing, {byte, 1}), !model[byte]) << byte;
      }
    }
  }
}

}  // namespace
}  // namespace byteps::protocol
