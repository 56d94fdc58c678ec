// A timer for pure state machines that say when they want their next tick.
//
// Most events only move that time later, so the timer is left alone and looks again when it fires: a heartbeat
// costs no timer operation.
#pragma once

#include <utility>

#include "transport/event_loop.h"

namespace byteps::transport {

// On the loop's thread. Destroyed on it, or after it has stopped.
class LazyTimer {
 public:
  // `next_tick` gives the time wanted (kNever: none); `tick` runs when it has come.
  LazyTimer(EventLoop& loop, UniqueFunction<TimeUs()> next_tick, UniqueFunction<void()> tick)
      : loop_(loop), next_tick_(std::move(next_tick)), tick_(std::move(tick)) {}
  ~LazyTimer() { stop(); }

  // To be called after every event of the state machine.
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
