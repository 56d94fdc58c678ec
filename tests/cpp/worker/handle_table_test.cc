#include "worker/handle_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "worker/completion_thread.h"

namespace byteps::worker {
namespace {

class SystemClock final : public Clock {
 public:
  TimeUs now_us() const override { return byteps::now_us(); }
};
const SystemClock system_clock;

TEST(HandleTableTest, AHandleIsDoneOnceFinishedAndGoneOnceWaitedFor) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle handle = table.open(100);
  bool interrupted = false;
  EXPECT_FALSE(*table.poll(handle));
  EXPECT_EQ(table.wait(handle, now_us() + 1000, interrupted).code(), StatusCode::kDeadlineExceeded);
  table.finish(handle, Status::ok());
  EXPECT_TRUE(*table.poll(handle));
  EXPECT_TRUE(table.wait(handle, kNever, interrupted).is_ok());
  EXPECT_FALSE(interrupted);
  EXPECT_EQ(table.poll(handle).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table.wait(handle, kNever, interrupted).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(metrics.push_pulls.load(), 1u);
  EXPECT_EQ(metrics.push_pull_bytes.load(), 100u);
}

TEST(HandleTableTest, AFailureIsTheOutcomeAndMovesNoBytes) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle handle = table.open(100);
  table.finish(handle, unavailable("rank 1 is gone"));
  bool interrupted = false;
  EXPECT_EQ(table.wait(handle, kNever, interrupted).message(), "rank 1 is gone");
  EXPECT_EQ(metrics.push_pull_bytes.load(), 0u);
}

TEST(HandleTableTest, BusyTimeCountsOverlappingHandlesOnce) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
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

TEST(HandleTableTest, ACallbackReplacesWaiting) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  std::string message;
  const protocol::Handle handle = table.open(100, [&](const Status& status) { message = status.message(); });
  EXPECT_FALSE(*table.poll(handle));
  table.finish(handle, unavailable("rank 1 is gone"));
  // the handle need not be freed
  EXPECT_EQ(table.poll(handle).status().code(), StatusCode::kInvalidArgument);
  table.close();
  EXPECT_EQ(message, "rank 1 is gone");
  EXPECT_EQ(metrics.push_pulls.load(), 1u);
  EXPECT_EQ(metrics.push_pull_bytes.load(), 0u);
}

TEST(HandleTableTest, ACancelledHandleGivesItsCallbackBack) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  int called = 0;
  OnDone on_done = table.cancel(table.open(1, [&](const Status&) { ++called; }));
  table.close();
  EXPECT_EQ(called, 0);
  on_done(Status::ok());
  EXPECT_EQ(called, 1);
  EXPECT_FALSE(table.cancel(table.open(1)));
}

TEST(HandleTableTest, ACancelledHandleWasNeverThere) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle handle = table.open(1);
  table.cancel(handle);
  EXPECT_FALSE(table.poll(handle));
  EXPECT_EQ(metrics.push_pulls.load(), 0u);
}

TEST(HandleTableTest, AWaitingThreadIsWokenByAnother) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle handle = table.open(1);
  std::thread finisher([&] { table.finish(handle, Status::ok()); });
  bool interrupted = false;
  EXPECT_TRUE(table.wait(handle, kNever, interrupted).is_ok());
  finisher.join();
}

TEST(HandleTableTest, AnnouncedHandlesAreGivenInTheOrderOfCompletion) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle a = table.open(1);
  const protocol::Handle b = table.open(1);
  const protocol::Handle silent = table.open(1);
  EXPECT_TRUE(table.announce(a).is_ok());
  EXPECT_TRUE(table.announce(a).is_ok());
  table.finish(silent, Status::ok());
  table.finish(b, Status::ok());
  EXPECT_TRUE(table.announce(b).is_ok());  // done before it was announced
  table.finish(a, unavailable("rank 1 is gone"));
  EXPECT_EQ(table.next_done(), b);
  EXPECT_EQ(table.next_done(), a);
  EXPECT_EQ(table.announce(17).code(), StatusCode::kInvalidArgument);
  table.close();
  EXPECT_EQ(table.next_done(), std::nullopt);
}

TEST(HandleTableTest, AThreadThatWaitsForAnnouncedHandlesIsWoken) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  const protocol::Handle handle = table.open(1);
  EXPECT_TRUE(table.announce(handle).is_ok());
  std::vector<std::optional<protocol::Handle>> given;
  std::thread listener([&] {
    do given.push_back(table.next_done());
    while (given.back());
  });
  table.finish(handle, Status::ok());
  bool interrupted = false;
  EXPECT_TRUE(table.wait(handle, kNever, interrupted).is_ok());  // keeps the announcement
  table.close();
  listener.join();
  EXPECT_EQ(given, (std::vector<std::optional<protocol::Handle>>{handle, std::nullopt}));
}

TEST(HandleTableTest, SaysWhichCallbackWaitsWhenNothingHappens) {
  Metrics metrics;
  HandleTable table(metrics, system_clock, std::make_unique<CompletionThread>());
  EXPECT_FALSE(table.stuck_callback(kNever)) << "nothing is in flight";
  const protocol::Handle waited_for = table.open(4);
  EXPECT_FALSE(table.stuck_callback(kNever)) << "a thread may wait for it, and says so itself";
  const protocol::Handle first = table.open(4, [](const Status&) {});
  const protocol::Handle second = table.open(4, [](const Status&) {});
  const auto stuck = table.stuck_callback(kNever);
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->handle, first);
  EXPECT_FALSE(table.stuck_callback(stuck->since_us - 1)) << "something has begun since";
  table.finish(first, Status::ok());
  EXPECT_EQ(table.stuck_callback(kNever)->handle, second);
  table.finish(second, Status::ok());
  EXPECT_FALSE(table.stuck_callback(kNever));
  table.finish(waited_for, Status::ok());
}

}  // namespace
}  // namespace byteps::worker
