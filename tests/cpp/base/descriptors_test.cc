#include "base/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

namespace byteps {
namespace {

TEST(DescriptorsTest, TheSoftLimitIsRaisedAndNeverLowered) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(64, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const uint64_t wanted = std::min<uint64_t>(before.rlim_max, kMaxDescriptors);
  EXPECT_EQ(raise_descriptor_limit(), wanted);
  EXPECT_EQ(raise_descriptor_limit(), wanted);
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, wanted);
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace byteps
