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

namespace byteps::transport {
namespace {

TEST(EpollLoop, RunsTasksInTheOrderPosted) {
  const auto loop = make_loop();
  constexpr int kTasks = 5000;
  std::array<std::vector<int>, 3> seen;
  std::vector<std::thread> threads;
  for (size_t who = 0; who < seen.size(); ++who) {
    threads.emplace_back([&, who] {
      for (int i = 0; i < kTasks; ++i) loop->post([&seen, who, i] { seen[who].push_back(i); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop->stop();
  for (const auto& each : seen) {
    ASSERT_EQ(each.size(), static_cast<size_t>(kTasks));
    EXPECT_TRUE(std::is_sorted(each.begin(), each.end()));
  }
}

TEST(EpollLoop, ATaskPostedByATaskRunsAfterIt) {
  const auto loop = make_loop();
  std::string order;
  run_on(*loop, [&] {
    EXPECT_TRUE(loop->in_loop());
    loop->post([&] { order += "b"; });
    order += "a";
  });
  run_on(*loop, [&] { order += "c"; });
  EXPECT_EQ(order, "abc");
  EXPECT_FALSE(loop->in_loop());
}

TEST(EpollLoop, WhatATaskHoldsGoesWithIt) {
  const auto loop = make_loop();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  bool gone = false;
  run_on(*loop, [&] {
    loop->post([held = std::move(held)] {});
    loop->post([&] { gone = watch.expired(); });
  });
  run_on(*loop, [] {});
  EXPECT_TRUE(gone);
}

TEST(EpollLoop, StopRunsWhatWasPostedAndDestroysWhatComesLater) {
  const auto loop = make_loop();
  int ran = 0;
  for (int i = 0; i < 100; ++i) loop->post([&] { ++ran; });
  loop->stop();
  EXPECT_EQ(ran, 100);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  loop->post([&ran, held = std::move(held)] { ++ran; });
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(loop->run_and_wait([&] { ++ran; }));
  EXPECT_EQ(ran, 100);
  loop->stop();
}

TEST(EpollLoop, RunAndWaitReturnsWhenTheLoopStopsMeanwhile) {
  for (int round = 0; round < 50; ++round) {
    const auto loop = make_loop();
    std::thread stopper([&] { loop->stop(); });
    std::atomic<int> ran = 0;
    int answered = 0;
    while (loop->run_and_wait([&] { ++ran; })) ++answered;
    stopper.join();
    EXPECT_EQ(ran, answered);
  }
}

TEST(EpollLoop, TimersRunInOrderAndNotBeforeTheirTime) {
  const auto loop = make_loop();
  std::string order;
  Watched<bool> done;
  std::array<TimeUs, 3> late_us{};
  run_on(*loop, [&] {
    const TimeUs start = now_us();
    loop->run_at(start + 3000, [&, start] { order += "c", late_us[2] = now_us() - start - 3000; });
    loop->run_at(start + 700, [&, start] { order += "b", late_us[1] = now_us() - start - 700; });
    loop->run_at(start - 5, [&, start] { order += "a", late_us[0] = now_us() - start; });
    loop->run_at(start + 3000, [&] {
      order += "d";
      done.update([](bool& d) { d = true; });
    });
    loop->run_at(kNever, [&] { order += "never"; });
  });
  ASSERT_TRUE(done.wait([](bool d) { return d; }));
  EXPECT_EQ(order, "abcd");
  for (const TimeUs late : late_us) EXPECT_GE(late, 0);
}

TEST(EpollLoop, ACancelledTimerIsDestroyedUnrun) {
  const auto loop = make_loop();
  bool ran = false;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  EpollLoop::TimerId second = 0;
  run_on(*loop, [&] {
    // Both are due at once; the first cancels the second.
    loop->run_at(now_us() - 2, [&] { loop->cancel(second); });
    second = loop->run_at(now_us() - 1, [&ran, held = std::move(held)] { ran = true; });
  });
  run_on(*loop, [] {});
  run_on(*loop, [&] { loop->cancel(12345); });
  EXPECT_FALSE(ran);
  EXPECT_TRUE(watch.expired());
}

TEST(EpollLoop, ATimerThatIsAlwaysDueStarvesNothing) {
  const auto loop = make_loop();
  int passes = 0;
  UniqueFunction<void()> again;
  again = [&] {
    ++passes;
    loop->run_at(0, [&] { again(); });
  };
  run_on(*loop, [&] { again(); });
  for (int i = 0; i < 100; ++i) run_on(*loop, [] {});
  loop->stop();
  EXPECT_GT(passes, 1);
}

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

class Turns : public TurnHandler {
 public:
  explicit Turns(std::function<void()> action) : action_(std::move(action)) {}
  void on_turn() override { action_(); }

 private:
  std::function<void()> action_;
};

TEST(EpollLoop, ATurnComesOnceAfterAllTasksOfThePass) {
  const auto loop = make_loop();
  std::string order;
  Turns turns([&] { order += "turn "; });
  run_on(*loop, [&] {
    for (int i = 0; i < 3; ++i) loop->post([&] { order += "task "; });
    loop->post([&] { loop->request_turn(&turns); });
    loop->post([&] { order += "task "; });
  });
  for (int passes = 0; passes < 2; ++passes) run_on(*loop, [] {});
  EXPECT_EQ(order, "task task task task turn ");
}

TEST(EpollLoop, ATurnAskedForInATurnComesWithoutAnythingElseHappening) {
  const auto loop = make_loop();
  Watched<int> turns_taken;
  Turns turns([&] {
    turns_taken.update([](int& n) { ++n; });
    if (turns_taken.get() < 100) loop->request_turn(&turns);
  });
  run_on(*loop, [&] { loop->request_turn(&turns); });
  EXPECT_TRUE(turns_taken.wait([](int n) { return n == 100; }));
  run_on(*loop, [] {});  // the last turn has ended
}

// A connection posts its own destruction from inside a callback, also in the loop's very last pass.
TEST(EpollLoop, WhatItPostsToItselfIsNeverDestroyedInsideTheCallback) {
  const auto loop = make_loop();
  bool in_turn = false;
  int destroyed_inside = 0;
  const auto witness = [&] {
    return std::shared_ptr<void>(nullptr, [&](void*) { destroyed_inside += in_turn ? 1 : 0; });
  };
  Turns* self = nullptr;
  Turns turns([&] {
    in_turn = true;
    loop->post([held = witness()] {});
    loop->request_turn(self);
    in_turn = false;
  });
  self = &turns;
  run_on(*loop, [&] { loop->request_turn(&turns); });
  loop->stop();
  EXPECT_EQ(destroyed_inside, 0);
}

TEST(EpollLoop, ACancelledTurnDoesNotCome) {
  const auto loop = make_loop();
  int taken = 0;
  Turns victim([&] { ++taken; });
  Turns killer([&] { loop->cancel_turn(&victim); });
  run_on(*loop, [&] {
    loop->request_turn(&killer);
    loop->request_turn(&victim);
  });
  run_on(*loop, [&] {
    loop->request_turn(&victim);
    loop->cancel_turn(&victim);
  });
  run_on(*loop, [] {});
  EXPECT_EQ(taken, 0);
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

}  // namespace
}  // namespace byteps::transport
