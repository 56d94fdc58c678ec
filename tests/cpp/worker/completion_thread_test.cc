#include "worker/completion_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/event_flag.h"

namespace byteps::worker {
namespace {

TEST(CompletionsTest, CallsInTheOrderOfPostsOnOneOtherThread) {
  std::vector<int> called;
  std::vector<std::thread::id> threads;
  {
    CompletionThread completions;
    for (int i = 0; i < 1000; ++i) {
      completions.post(
          [&, i](const Status& status) {
            EXPECT_EQ(status.message(), std::to_string(i));
            called.push_back(i);
            threads.push_back(std::this_thread::get_id());
          },
          unavailable(std::to_string(i)));
    }
  }  // the destructor waits for all callbacks
  ASSERT_EQ(called.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(called[static_cast<size_t>(i)], i);
  for (const auto& thread : threads) EXPECT_EQ(thread, threads.front());
  EXPECT_NE(threads.front(), std::this_thread::get_id());
}

TEST(CompletionsTest, ThreadsMayPostAtOnceAndCallbacksMayPost) {
  std::atomic<int> called = 0;
  CompletionThread completions;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        completions.post(
            [&](const Status&) {
              ++called;
              completions.post([&](const Status&) { ++called; }, Status::ok());
            },
            Status::ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EventFlag last;
  completions.post([&](const Status&) { completions.post([&](const Status&) { last.set(); }, Status::ok()); },
                   Status::ok());
  EXPECT_EQ(last.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
  completions.close();
  EXPECT_EQ(called, 1600);
}

TEST(CompletionsTest, AfterTheEndTheCallerCalls) {
  CompletionThread completions;
  completions.close();
  completions.close();
  std::thread::id thread;
  completions.post([&](const Status&) { thread = std::this_thread::get_id(); }, Status::ok());
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(CompletionsTest, ACallbackMayEndIt) {
  std::atomic<int> called = 0;
  {
    CompletionThread completions;
    completions.post(
        [&](const Status&) {
          completions.close();
          completions.post([&](const Status&) { ++called; }, Status::ok());
          ++called;
        },
        Status::ok());
  }
  EXPECT_EQ(called, 2);
}

}  // namespace
}  // namespace byteps::worker
