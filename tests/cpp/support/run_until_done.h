// A thread that blocks until a callback has come.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/event_flag.h"

namespace byteps {

// Calls `start` with a callback, and blocks until that was called, at most until `deadline_us`.
// Signals do not end the wait. Not on an event loop that has a part in it.
template <typename Start>
void run_until_done(TimeUs deadline_us, Start&& start) {
  const auto done = std::make_shared<EventFlag>();
  start([done] { done->set(); });
  while (done->wait(deadline_us) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace byteps
