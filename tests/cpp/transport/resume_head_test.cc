#include "transport/resume/resume_head.h"

#include <gtest/gtest.h>

namespace byteps::transport {
namespace {

using Kind = ResumeHead::Kind;

TEST(ResumeHead, TravelsAsBytes) {
  const ResumeHead open{.kind = Kind::kOpen, .received = 7, .session = {1ull << 60, 3}, .oldest = 1ull << 40};
  const auto read = decode_resume_head(encode(open));
  ASSERT_TRUE(read) << read.status();
  EXPECT_EQ(read->kind, Kind::kOpen);
  EXPECT_EQ(read->received, 7u);
  EXPECT_EQ(read->session, open.session);
  EXPECT_EQ(read->oldest, 1ull << 40);
}

TEST(ResumeHead, OnlyDataIsFollowedByAHead) {
  const auto bytes = encode(ResumeHead{.kind = Kind::kData, .received = 5});
  EXPECT_TRUE(decode_resume_head(Bytes(bytes).first(kResumeHeadBytes)));
  EXPECT_TRUE(decode_resume_head(bytes));
  EXPECT_FALSE(decode_resume_head(Bytes(bytes).first(kResumeHeadBytes - 1)));
  const auto resumed = encode(ResumeHead{.kind = Kind::kResumed});
  EXPECT_TRUE(decode_resume_head(Bytes(resumed).first(kResumeHeadBytes)));
  EXPECT_EQ(decode_resume_head(resumed).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(decode_resume_head({}));
  auto other = bytes;
  for (const int kind : {0, 5}) {
    other[0] = static_cast<std::byte>(kind);
    EXPECT_FALSE(decode_resume_head(other)) << kind;
  }
}

}  // namespace
}  // namespace byteps::transport
