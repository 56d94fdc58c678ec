// A process of the simulated job: what is to happen in it happens later if it is stopped, never if it is gone.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/unique_function.h"
#include "sim/virtual_clock.h"

namespace byteps::sim {

class VirtualProcess {
 public:
  VirtualProcess(VirtualClock& clock, std::string name) : clock_(clock), name_(std::move(name)) {}
  VirtualProcess(const VirtualProcess&) = delete;
  VirtualProcess& operator=(const VirtualProcess&) = delete;

  const std::string& name() const { return name_; }
  bool gone() const { return gone_; }
  bool stopped() const { return stopped_; }

  void at(TimeUs when, UniqueFunction<void()> task) {
    clock_.at(when, [this, task = std::move(task)]() mutable { run(std::move(task)); });
  }
  void soon(UniqueFunction<void()> task) { at(clock_.now(), std::move(task)); }

  // SIGSTOP and SIGCONT. What came in between then happens in the order in which it came.
  void stop() { stopped_ = true; }
  void resume() {
    stopped_ = false;
    while (!stopped_ && !gone_ && !waiting_.empty()) {
      auto task = std::move(waiting_.front());
      waiting_.pop_front();
      task();
    }
  }
  // It has exited or was killed.
  void end() {
    gone_ = true;
    waiting_.clear();
  }

 private:
  void run(UniqueFunction<void()> task) {
    if (gone_) return;
    if (stopped_) {
      waiting_.push_back(std::move(task));
    } else {
      task();
    }
  }

  VirtualClock& clock_;
  std::string name_;
  bool gone_ = false;
  bool stopped_ = false;
  std::deque<UniqueFunction<void()>> waiting_;
};

}  // namespace byteps::sim
