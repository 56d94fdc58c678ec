// Callbacks that several parts of a process give when they are done.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/unique_function.h"

namespace byteps {

// Calls `done` once, in the `count`-th call of report(), or at once if count is 0. Any thread.
// Shared by those who report, as they may do so later than anybody waits for them.
class Countdown {
 public:
  static std::shared_ptr<Countdown> start(size_t count, UniqueFunction<void()> done) {
    if (count == 0) done();
    return std::shared_ptr<Countdown>(new Countdown(count, std::move(done)));
  }
  void report() {
    if (left_.fetch_sub(1) == 1) std::exchange(done_, nullptr)();
  }

 private:
  Countdown(size_t count, UniqueFunction<void()> done) : left_(count), done_(std::move(done)) {}

  std::atomic<size_t> left_;
  UniqueFunction<void()> done_;
};

}  // namespace byteps
