#include "worker/handle_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace byteps::worker {
namespace {

TEST(HandleTableTest, AHandleIsDoneOnceFinishedAndGoneOnceWaitedFor) {
  Metrics metrics;
  HandleTable table(metrics);
  const protocol::Handle handle = table.open(100);
  bool interrupted = false;
  EXPECT_FALSE(*table.poll(handle));
  EXPECT_EQ(table.wait(handle, now_us() + 1000, interrupted).code(), StatusCode::kDeadlineExceeded);
  table.finish(handle, Status::ok());
  EXPECT_TRUE(*table.poll(handle));
  EXPECT_TRUE(table.wait(handle, kNever, interrupted));
  EXPECT_FALSE(interrupted);
  EXPECT_EQ(table.poll(handle).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table.wait(handle, kNever, interrupted).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(metrics.push_pulls.load(), 1u);
  EXPECT_EQ(metrics.push_pull_bytes.load(), 100u);
}

TEST(HandleTableTest, AFailureIsTheOutcomeAndMovesNoBytes) {
  Metrics metrics;
  HandleTable table(metrics);
  const protocol::Handle handle = table.open(100);
  table.finish(handle, unavailable("rank 1 is gone"));
  bool interrupted = false;
  EXPECT_EQ(table.wait(handle, kNever, interrupted).message(), "rank 1 is gone");
  EXPECT_EQ(metrics.push_pull_bytes.load(), 0u);
}

TEST(HandleTableTest, BusyTimeCountsOverlappingHandlesOnce) {
  Metrics metrics;
  HandleTable table(metrics);
  const TimeUs before = now_us();
  const protocol::Handle a = table.open(1);
  const protocol::Handle b = table.open(1);
  EventFlag().wait(now_us() + 5'000);
  table.finish(a, Status::ok());
  table.finish(b, Status::ok());
  const auto taken = static_cast<uint64_t>(now_us() - before);
  EXPECT_GE(metrics.busy_us.load(), 5'000u);
  EXPECT_LE(metrics.busy_us.load(), taken);
  EXPECT_GE(metrics.push_pull_us.load(), 10'000u);
}

TEST(HandleTableTest, ACancelledHandleWasNeverThere) {
  Metrics metrics;
  HandleTable table(metrics);
  const protocol::Handle handle = table.open(1);
  table.cancel(handle);
  EXPECT_FALSE(table.poll(handle));
  EXPECT_EQ(metrics.push_pulls.load(), 0u);
}

TEST(HandleTableTest, AWaitingThreadIsWokenByAnother) {
  Metrics metrics;
  HandleTable table(metrics);
  const protocol::Handle handle = table.open(1);
  std::thread finisher([&] { table.finish(handle, Status::ok()); });
  bool interrupted = false;
  EXPECT_TRUE(table.wait(handle, kNever, interrupted));
  finisher.join();
}

}  // namespace
}  // namespace byteps::worker
