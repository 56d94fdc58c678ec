#include "transport/epoll_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/slab.h"
#include "base/unique_fd.h"
#include "transport/harness.h"
#include "transport/loop_conformance.h"

namespace byteps::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Epoll, LoopConformance,
                         testing::Values(LoopKind{"", [](std::shared_ptr<void>&) { return make_loop(); }}));

// A descriptor that is ready whenever it is told to.
class Signal : public FdHandler {
 public:
  explicit Signal(EpollLoop& loop) : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), loop_(loop) {
    EXPECT_TRUE(loop.watch(fd_.get(), EPOLLIN, this).is_ok());
  }
  ~Signal() override { loop_.unwatch(fd_.get()); }
  void raise() {
    const uint64_t one = 1;
    EXPECT_EQ(write(fd_.get(), &one, sizeof one), ssize_t{sizeof one});
  }
  void on_ready(uint32_t) override {
    uint64_t count = 0;
    EXPECT_EQ(read(fd_.get(), &count, sizeof count), ssize_t{sizeof count});
    ++calls;
    if (action) action();
  }
  int fd() const { return fd_.get(); }
  int calls = 0;
  std::function<void()> action;

 private:
  UniqueFd fd_;
  EpollLoop& loop_;
};

TEST(EpollLoop, AHandlerRunsWhenItsDescriptorIsReady) {
  const auto loop = make_loop();
  auto signal = on_loop(*loop, [&] { return std::make_unique<Signal>(*loop); });
  Watched<int> calls;
  signal->action = [&] { calls.update([](int& n) { ++n; }); };
  signal->raise();
  ASSERT_TRUE(calls.wait([](int n) { return n == 1; }));
  run_on(*loop, [&] {
    EXPECT_TRUE(loop->modify(signal->fd(), 0).is_ok());
    signal->raise();
  });
  run_on(*loop, [] {});
  EXPECT_EQ(calls.get(), 1);
  run_on(*loop, [&] { EXPECT_TRUE(loop->modify(signal->fd(), EPOLLIN).is_ok()); });
  ASSERT_TRUE(calls.wait([](int n) { return n == 2; }));
  run_on(*loop, [&] { signal.reset(); });
}

TEST(EpollLoop, NoEventReachesAHandlerThatWasUnwatchedInTheSamePass) {
  const auto loop = make_loop();
  for (const bool same_number : {false, true}) {
    std::array<std::unique_ptr<Signal>, 2> signals;
    std::unique_ptr<Signal> heir;  // gets the number of a closed descriptor whose event is fetched already
    int heard = 0;
    run_on(*loop, [&] {
      for (auto& each : signals) each = std::make_unique<Signal>(*loop);
      for (int i : {0, 1}) {
        signals[i]->action = [&, i] {
          ++heard;
          signals[1 - i].reset();
          if (same_number) heir = std::make_unique<Signal>(*loop);
        };
        signals[i]->raise();
      }
    });
    run_on(*loop, [] {});
    run_on(*loop, [&] {
      EXPECT_EQ(heard, 1);
      EXPECT_TRUE(!heir || heir->calls == 0);
      heir.reset();
      for (auto& each : signals) each.reset();
    });
  }
}

TEST(EpollLoop, ItsThreadHasItsNameAndBlocksAllSignals) {
  auto loop = EpollLoop::create("a name that is too long");
  ASSERT_TRUE(loop.is_ok());
  run_on(**loop, [] {
    char name[32];
    pthread_getname_np(pthread_self(), name, sizeof name);
    EXPECT_STREQ(name, "a name that is ");
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) EXPECT_EQ(sigismember(&blocked, signal), 1);
  });
  sigset_t here;
  pthread_sigmask(SIG_SETMASK, nullptr, &here);
  EXPECT_EQ(sigismember(&here, SIGINT), 0);
}

// How often the thread went to sleep so far: every wake-up adds one.
long sleeps_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; file >> word;) {
    if (word == "voluntary_ctxt_switches:") {
      file >> word;
      return std::stol(word);
    }
  }
  return -1;
}

TEST(EpollLoop, AnIdleLoopDoesNotWakeUp) {
  const auto loop = make_loop();
  const pid_t thread = on_loop(*loop, [&] {
    loop->run_at(now_us() + 60'000'000, [] {});
    return gettid();
  });
  usleep(20'000);  // until it sleeps
  const long before = sleeps_of(thread);
  usleep(200'000);
  EXPECT_GE(before, 0);
  EXPECT_EQ(sleeps_of(thread), before);
}

TEST(EpollLoop, OutOfMemoryItServesNobodyAndCanStillBeToldToEnd) {
  Watched<std::vector<std::string>> told;
  auto loop = EpollLoop::create(
      "full", [&](const Status& why) { told.update([&](auto& texts) { texts.push_back(why.message()); }); });
  ASSERT_TRUE(loop.is_ok());
  struct Count final : FdHandler {
    void on_ready(uint32_t) override { ++count; }
    int count = 0;
  } ready;
  const UniqueFd event(eventfd(0, EFD_NONBLOCK));
  run_on(**loop, [&] { EXPECT_TRUE((*loop)->watch(event.get(), EPOLLIN, &ready).is_ok()); });
  EventFlag next;
  run_on(**loop, [&] {  // all three in one pass
    (*loop)->post([] { throw OutOfMemory(12345); });
    (*loop)->post([] { throw OutOfMemory(1); });
    (*loop)->post([&] { next.set(); });
  });
  EXPECT_EQ(next.wait(soon_us()), EventFlag::Wake::kSet);
  const auto texts = told.get();
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0], "its thread full is out of memory: no memory for 12345 bytes");
  const uint64_t one = 1;
  EXPECT_EQ(write(event.get(), &one, sizeof one), ssize_t{sizeof one});
  EventFlag timer;
  run_on(**loop, [&] {
    (*loop)->run_at(now_us() + 1'000, [&] { timer.set(); });
    EXPECT_FALSE((*loop)->watch(event.get(), EPOLLIN, &ready).is_ok());
  });
  EXPECT_EQ(timer.wait(soon_us()), EventFlag::Wake::kSet);
  EXPECT_EQ(ready.count, 0);
}

// Runs `work` on this thread as the loop's, as soon as the loop's own thread sleeps. False if it
// never does.
bool borrow(EpollLoop& loop, const std::function<void()>& work) {
  const std::thread::id here = std::this_thread::get_id();
  for (const TimeUs deadline_us = soon_us(); now_us() < deadline_us;) {
    bool borrowed = false;
    EventFlag ran;
    loop.run_soon([&] {
      borrowed = std::this_thread::get_id() == here;
      if (borrowed) work();
      ran.set();
    });
    ran.wait(kNever);
    if (borrowed) return true;
  }
  return false;
}

TEST(EpollLoop, ALoopThatSleepsLendsItselfToTheCaller) {
  const auto loop = make_loop();
  std::string order;
  ASSERT_TRUE(borrow(*loop, [&] {
    EXPECT_TRUE(loop->in_loop());
    loop->post([&] { order += "b"; });
    order += "a";
  }));
  EXPECT_EQ(order, "ab");  // what the task posts is run as well
  EXPECT_FALSE(loop->in_loop());
}

TEST(EpollLoop, ATaskThatMayWaitDoesNotEndTheSleep) {
  const auto loop = make_loop();
  const TimeUs due_us = now_us() + 50'000;
  run_on(*loop, [&] { loop->run_at(due_us, [] {}); });
  ASSERT_TRUE(borrow(*loop, [] {}));  // it sleeps
  EventFlag ran;
  TimeUs ran_us = 0;
  loop->post_within(60'000'000, [&] {
    ran_us = now_us();
    ran.set();
  });
  ASSERT_EQ(ran.wait(soon_us()), EventFlag::Wake::kSet);
  EXPECT_GE(ran_us, due_us);
}

TEST(EpollLoop, NoTaskOvertakesOneThatMayWait) {
  const auto loop = make_loop();
  run_on(*loop, [&] { loop->run_at(now_us() + 3'600'000'000, [] {}); });
  for (const bool soon : {true, false}) {
    ASSERT_TRUE(borrow(*loop, [] {}));
    std::string order;
    EventFlag done;
    loop->post_within(kNever / 2, [&] { order += "a"; });
    auto second = [&] {
      order += "b";
      done.set();
    };
    soon ? loop->run_soon(second) : loop->post(second);
    ASSERT_EQ(done.wait(soon_us()), EventFlag::Wake::kSet);
    EXPECT_EQ(order, "ab");
  }
}

TEST(EpollLoop, EventsWaitUntilTheLoopIsGivenBack) {
  const auto loop = make_loop();
  auto signal = on_loop(*loop, [&] { return std::make_unique<Signal>(*loop); });
  std::atomic<bool> borrowed = false;
  Watched<int> calls;
  signal->action = [&] {
    EXPECT_FALSE(borrowed);
    calls.update([](int& n) { ++n; });
  };
  for (int round = 1; round <= 50; ++round) {
    ASSERT_TRUE(borrow(*loop, [&] {
      borrowed = true;
      signal->raise();
      std::this_thread::yield();
      borrowed = false;
    }));
    ASSERT_TRUE(calls.wait([&](int n) { return n == round; }));
  }
  run_on(*loop, [&] { signal.reset(); });
}

TEST(EpollLoop, StopWaitsForTheBorrower) {
  const auto loop = make_loop();
  std::thread stopper;
  EventFlag stops;
  bool ended = false;
  ASSERT_TRUE(borrow(*loop, [&] {
    stopper = std::thread([&] {
      stops.set();
      loop->stop();
      EXPECT_TRUE(ended);
    });
    stops.wait(kNever);
    std::this_thread::yield();
    ended = true;
  }));
  stopper.join();
}

TEST(EpollLoop, OutOfMemoryOnABorrowingThreadIsReportedOnTheLoopsOwn) {
  Watched<std::vector<std::thread::id>> told;
  auto loop = EpollLoop::create("full", [&](const Status& why) {
    EXPECT_EQ(why.message(), "its thread full is out of memory: no memory for 12345 bytes");
    told.update([](auto& threads) { threads.push_back(std::this_thread::get_id()); });
  });
  ASSERT_TRUE(loop.is_ok());
  const auto own = on_loop(**loop, [] { return std::this_thread::get_id(); });
  ASSERT_TRUE(borrow(**loop, [&] { (*loop)->post([] { throw OutOfMemory(12345); }); }));
  ASSERT_TRUE(told.wait([](const auto& threads) { return threads.size() == 1; }));
  EXPECT_EQ(told.get()[0], own);
}

}  // namespace
}  // namespace byteps::transport
