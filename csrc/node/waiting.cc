#include "node/waiting.h"

#include <algorithm>

namespace byteps::node {
namespace {

// A signal that comes between the question and the wait interrupts nothing.
constexpr TimeUs kAskAgainUs = 500'000;

}  // namespace

Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  while (keep_waiting()) {
    const TimeUs until_us = std::min(deadline_us, now_us() + kAskAgainUs);
    const EventFlag::Wake wake = flag.wait(until_us);
    if (wake == EventFlag::Wake::kSet) return Status::ok();
    if (wake == EventFlag::Wake::kTimeout && until_us == deadline_us) return deadline_exceeded("timed out");
  }
  return aborted("interrupted");
}

}  // namespace byteps::node
