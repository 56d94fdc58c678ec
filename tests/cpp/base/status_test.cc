#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace byteps {
namespace {

TEST(StatusTest, OkIsEmptyAndTrue) {
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_TRUE(Status(StatusCode::kOk, "ignored").is_ok());
}

TEST(StatusTest, ContextGoesBeforeTheMessageAndKeepsTheCode) {
  const Status status = data_loss("frame: expected 48 bytes, got 3").with_context("rank 1");
  EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "rank 1: frame: expected 48 bytes, got 3");
  EXPECT_TRUE(Status::ok().with_context("rank 1").is_ok());
}

TEST(StatusTest, ErrnoIsNamedAndNumbered) {
  const Status status = from_errno("tcp: connect", ECONNREFUSED);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "tcp: connect: Connection refused (errno 111)");
}

TEST(StatusTest, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    EXPECT_NE(to_string(static_cast<StatusCode>(code)), "unknown") << code;
  }
}

TEST(ResultTest, HoldsAValueOrAReason) {
  Result<std::unique_ptr<int>> good = std::make_unique<int>(7);
  ASSERT_TRUE(good);
  EXPECT_EQ(**good, 7);
  EXPECT_TRUE(good.status().is_ok());
  EXPECT_EQ(*std::move(good).value(), 7);
  const Result<int> bad = invalid_argument("no");
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.status().message(), "no");
}

Status fails_at(int step) {
  BPS_RETURN_IF_ERROR(step == 1 ? internal("first") : Status::ok());
  BPS_RETURN_IF_ERROR(step == 2 ? internal("second") : Status::ok());
  return Status::ok();
}

TEST(StatusTest, ReturnIfErrorStopsAtTheFirst) {
  EXPECT_EQ(fails_at(1).message(), "first");
  EXPECT_EQ(fails_at(2).message(), "second");
  EXPECT_TRUE(fails_at(3).is_ok());
}

TEST(StatusTest, WhoHasTooManyDescriptorsIsToldWhatToDo) {
  EXPECT_NE(from_errno("accept", EMFILE).message().find("ulimit -Hn"), std::string::npos);
  EXPECT_EQ(from_errno("accept", ECONNABORTED).message().find("ulimit"), std::string::npos);
}

}  // namespace
}  // namespace byteps
