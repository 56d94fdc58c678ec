#include "base/event_flag.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <thread>
#include <vector>

namespace byteps {
namespace {

TEST(EventFlagTest, WaitReturnsAtOnceWhenSet) {
  EventFlag flag;
  EXPECT_FALSE(flag.is_set());
  flag.set();
  flag.set();
  EXPECT_TRUE(flag.is_set());
  EXPECT_EQ(flag.wait(0), EventFlag::Wake::kSet);
}

TEST(EventFlagTest, WaitEndsAtTheDeadline) {
  EventFlag flag;
  const TimeUs before = now_us();
  EXPECT_EQ(flag.wait(before + 20'000), EventFlag::Wake::kTimeout);
  EXPECT_GE(now_us(), before + 20'000);
}

TEST(EventFlagTest, WakesAllWaiters) {
  EventFlag flag;
  int value = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      EXPECT_EQ(flag.wait(kNever), EventFlag::Wake::kSet);
      EXPECT_EQ(value, 7) << "what was written before set() is seen after wait()";
    });
  }
  value = 7;
  flag.set();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(EventFlagTest, ASignalInterruptsTheWait) {
  struct sigaction action{};
  action.sa_handler = [](int) {};  // as Python installs its handlers: without SA_RESTART
  struct sigaction before{};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  EventFlag flag;
  EventFlag interrupted;
  std::thread waiter([&] {
    while (flag.wait(kNever) != EventFlag::Wake::kInterrupted) {
    }
    interrupted.set();
  });
  // The signal may come before the wait has begun, so it is repeated until it interrupts the wait.
  while (interrupted.wait(now_us() + 1'000) != EventFlag::Wake::kSet)
    pthread_kill(waiter.native_handle(), SIGUSR1);
  waiter.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace byteps
