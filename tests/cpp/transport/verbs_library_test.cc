#include "transport/rdma/verbs_library.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

#include "transport/rdma/verbs_device.h"
#include "transport/rdma/verbs_nic.h"
#include "transport/rdma/verbs_queue_pair.h"

namespace byteps::transport::rdma {
namespace {

TEST(VerbsLibrary, IsThereOrSaysHowToGetIt) {
  const auto verbs = verbs_library();
  if (verbs) {
    EXPECT_EQ(*verbs, *verbs_library());
  } else {
    EXPECT_EQ(verbs.status().code(), StatusCode::kUnimplemented);
    EXPECT_NE(verbs.status().message().find("apt-get install libibverbs1"), std::string::npos);
  }
}

TEST(VerbsLibrary, KernelsBefore512MovePinnedPagesAtForks) {
  for (const char* old : {"4.18.0-553.el8", "5.4.0-1-amd64", "5.11.22", "3.10.0", "what"}) {
    EXPECT_TRUE(fork_moves_pinned_pages(old)) << old;
  }
  for (const char* recent : {"5.12.0", "5.15.0-91-generic", "6.1.0-41-amd64", "10.0"}) {
    EXPECT_FALSE(fork_moves_pinned_pages(recent)) << recent;
  }
}

TEST(VerbsLibrary, TheLimitOfLockedMemoryIsExplainedWhereItMayBeTheReason) {
  for (const int error : {ENOMEM, EAGAIN, EPERM}) {
    const std::string advice = advice_on_locked_memory(error, 64 * 1024);
    for (const char* part :
         {"64 KiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"}) {
      EXPECT_NE(advice.find(part), std::string::npos) << advice;
    }
  }
  EXPECT_EQ(advice_on_locked_memory(EFAULT, 64 * 1024), "");
  EXPECT_EQ(advice_on_locked_memory(ENOMEM, RLIM_INFINITY).find("ulimit"), std::string::npos);
}

TEST(VerbsLibrary, MtuCodesStandForBytes) {
  for (const int bytes : {256, 512, 1024, 2048, 4096}) {
    const auto code = to_mtu_code(bytes);
    ASSERT_TRUE(code) << bytes;
    EXPECT_EQ(mtu_bytes_of(*code), bytes);
  }
  for (const int wrong : {-1, 0, 1, 128, 1500, 8192}) EXPECT_FALSE(to_mtu_code(wrong)) << wrong;
  for (const int wrong : {-1, 0, 6, 1000}) EXPECT_EQ(mtu_bytes_of(wrong), 0) << wrong;
}

TEST(VerbsNic, OptionsOutOfRangeAreNamed) {
  const auto nic = open_verbs_nic({.device = "none"}, {.traffic_class = 256});
  ASSERT_FALSE(nic);
  EXPECT_EQ(nic.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(nic.status().message().find("traffic class 256: expected 0 to 255"), std::string::npos);
}

}  // namespace
}  // namespace byteps::transport::rdma
