// What every event loop has to do. Programs instantiate the suite with the loops that they have.
#include <atomic>
#include <thread>

#include "transport/loop_conformance.h"

namespace byteps::transport {
namespace {

class Turns : public TurnHandler {
 public:
  explicit Turns(std::function<void()> action) : action_(std::move(action)) {}
  void on_turn() override { action_(); }

 private:
  std::function<void()> action_;
};

TEST_P(LoopConformance, RunsTasksInTheOrderPosted) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, ATaskPostedByATaskRunsAfterIt) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, TasksRunSoonKeepTheOrderOfTheirThreadAndRunOneAtATime) {
  const auto loop = new_loop();
  constexpr int kTasks = 5000;
  std::array<std::vector<int>, 3> seen;
  int total = 0;  // without a lock: only one task runs at a time
  std::vector<std::thread> threads;
  for (size_t who = 0; who < seen.size(); ++who) {
    threads.emplace_back([&, who] {
      for (int i = 0; i < kTasks; ++i) {
        auto task = [&, who, i] {
          EXPECT_TRUE(loop->in_loop());
          seen[who].push_back(i);
          ++total;
        };
        if (i % 4 == 0) {
          loop->post(task);
        } else if (i % 4 == 1) {
          loop->post_within(1'000, task);
        } else {
          loop->run_soon(task);
        }
        EXPECT_FALSE(loop->in_loop());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop->stop();
  EXPECT_EQ(total, 3 * kTasks);
  for (const auto& each : seen) EXPECT_TRUE(std::is_sorted(each.begin(), each.end()));
}

TEST_P(LoopConformance, WhatATaskRunSoonAsksForHappens) {
  const auto loop = new_loop();
  for (int round = 0; round < 100; ++round) {
    EventFlag posted;
    EventFlag timer;
    EventFlag turn;
    Turns turns([&] { turn.set(); });
    loop->run_soon([&] {
      loop->run_soon([&] { posted.set(); });
      loop->run_at(now_us(), [&] { timer.set(); });
      loop->request_turn(&turns);
    });
    for (EventFlag* each : {&posted, &timer, &turn}) ASSERT_EQ(each->wait(soon_us()), EventFlag::Wake::kSet);
    run_on(*loop, [] {});  // nothing uses the flags any more
  }
}

TEST_P(LoopConformance, WhatATaskHoldsGoesWithIt) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, StopRunsWhatWasPostedAndDestroysWhatComesLater) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, RunAndWaitReturnsWhenTheLoopStopsMeanwhile) {
  for (int round = 0; round < 50; ++round) {
    const auto loop = new_loop();
    std::thread stopper([&] { loop->stop(); });
    std::atomic<int> ran = 0;
    int answered = 0;
    while (loop->run_and_wait([&] { ++ran; })) ++answered;
    stopper.join();
    EXPECT_EQ(ran, answered);
  }
}

TEST_P(LoopConformance, TimersRunInOrderAndNotBeforeTheirTime) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, ACancelledTimerIsDestroyedUnrun) {
  const auto loop = new_loop();
  bool ran = false;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  EventLoop::TimerId second = 0;
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

TEST_P(LoopConformance, ATimerThatIsAlwaysDueStarvesNothing) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, ATurnComesOnceAfterAllTasksOfThePass) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, ATurnAskedForInATurnComesWithoutAnythingElseHappening) {
  const auto loop = new_loop();
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
TEST_P(LoopConformance, WhatItPostsToItselfIsNeverDestroyedInsideTheCallback) {
  const auto loop = new_loop();
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

TEST_P(LoopConformance, ACancelledTurnDoesNotCome) {
  const auto loop = new_loop();
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

}  // namespace
}  // namespace byteps::transport
