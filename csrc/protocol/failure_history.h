// Why rounds of one name have failed, for contributions that come later. Pure.
//
// A rank may be some rounds behind: it has to get the cause of its own round, not that of a later
// one, which most often is a mere consequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"

namespace byteps::protocol {

class FailureHistory {
 public:
  // Rounds up to `round`, and after the failure before, have failed because of `why`. Ignored for a
  // round that has failed already. Of many failures the oldest ones are forgotten: then the next
  // one stands for their rounds.
  void add(uint64_t round, Status why) {
    if (round <= last_round()) return;
    if (failures_.size() == kMaxFailures) failures_.erase(failures_.begin());
    failures_.push_back({round, std::move(why)});
  }
  // Forgets failures up to `round`, which nobody will ask for any more.
  void forget(uint64_t round) {
    std::erase_if(failures_, [round](const Failure& failure) { return failure.round <= round; });
  }
  // Ok if the round has not failed.
  Status find(uint64_t round) const {
    for (const Failure& failure : failures_) {
      if (round <= failure.round) return failure.why;
    }
    return Status::ok();
  }

 private:
  static constexpr size_t kMaxFailures = 8;

  struct Failure {
    uint64_t round;
    Status why;
  };

  uint64_t last_round() const { return failures_.empty() ? 0 : failures_.back().round; }

  std::vector<Failure> failures_;  // ascending by round
};

}  // namespace byteps::protocol
