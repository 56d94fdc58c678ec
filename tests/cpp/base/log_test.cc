#include "base/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace byteps {
namespace {

TEST(LogTest, OneLineWithLevelTimePrefixAndPlace) {
  log::set_prefix("r3");
  log::set_level(log::Level::kInfo);
  testing::internal::CaptureStderr();
  BPS_LOG(kInfo) << "peer " << 7 << " closed";
  BPS_LOG(kDebug) << "not shown";
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(
      std::regex_match(text, std::regex(R"(I \d\d:\d\d:\d\d\.\d{6} r3 log_test\.cc:\d+\] peer 7 closed\n)")))
      << text;
}

TEST(LogTest, ArgumentsOfASilentLineAreNotEvaluated) {
  log::set_level(log::Level::kError);
  int evaluated = 0;
  BPS_LOG(kWarning) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(LogTest, LinesOfThreadsDoNotMix) {
  log::set_prefix("x");
  log::set_level(log::Level::kInfo);
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i)
        BPS_LOG(kInfo) << "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = testing::internal::GetCapturedStderr();
  const std::regex line(R"(I \S+ x log_test\.cc:\d+\] a{56})");
  size_t count = 0;
  for (size_t begin = 0; begin < text.size(); ++count) {
    const size_t end = text.find('\n', begin);
    EXPECT_TRUE(std::regex_match(text.substr(begin, end - begin), line));
    begin = end + 1;
  }
  EXPECT_EQ(count, 200u);
}

}  // namespace
}  // namespace byteps
