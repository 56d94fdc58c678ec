#include "base/recently_dropped.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(RecentlyDroppedTest, AKeyComesBackOnce) {
  RecentlyDropped dropped(8);
  EXPECT_FALSE(dropped.take(5)) << "nothing was dropped";
  dropped.add(5);
  dropped.add(6);
  EXPECT_TRUE(dropped.take(5));
  EXPECT_FALSE(dropped.take(5));
  EXPECT_TRUE(dropped.take(6));
  EXPECT_FALSE(dropped.take(0)) << "stands for none";
}

TEST(RecentlyDroppedTest, ANewerKeyTakesTheOnlyPlaceOfAnOlderOne) {
  RecentlyDropped dropped(8);
  dropped.add(5);
  EXPECT_FALSE(dropped.take(13)) << "another key with the same place";
  dropped.add(13);
  EXPECT_FALSE(dropped.take(5));
  EXPECT_TRUE(dropped.take(13));
}

}  // namespace
}  // namespace byteps
