// A timer for pure state machines that know the time of their next tick.
//
// Most events only postpone that time. The timer then stays as it is and checks again when it
// fires, so a heartbeat costs no timer operation.
#pragma once

#include <utility>

#include "transport/event_loop.h"

namespace byteps::transport {

// Use on the loop's thread. Destroy on it, or after it has stopped.
class LazyTimer {
 public:
  // `next_tick` returns the time of the next tick (kNever: none); `tick` is called at that time.
  LazyTimer(EventLoop& loop, UniqueFunction<TimeUs()> next_tick, UniqueFunction<void()> tick)
      : loop_(loop), next_tick_(std::move(next_tick)), tick_(std::move(tick)) {}
  ~LazyTimer() { stop(); }

  // Call after every event of the state machine.
  void update() {
    const TimeUs wanted_us = next_tick_();
    if (wanted_us >= armed_us_) return;
    stop();
    armed_us_ = wanted_us;
    timer_ = loop_.run_at(wanted_us, [this] { fire(); });
  }
  void stop() {
    if (armed_us_ != kNever) loop_.cancel(timer_);
    armed_us_ = kNever;
  }

 private:
  void fire() {
    armed_us_ = kNever;
    if (next_tick_() <= loop_.now_us()) tick_();
    update();
  }

  EventLoop& loop_;
  UniqueFunction<TimeUs()> next_tick_;
  UniqueFunction<void()> tick_;
  EventLoop::TimerId timer_ = 0;
  TimeUs armed_us_ = kNever;
};

}  // namespace byteps::transport
