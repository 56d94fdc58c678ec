// Times of the log lines that say what is being waited for: after five seconds, then every thirty.
// Pure.
#pragma once

#include "base/clock.h"

namespace byteps::protocol {

class NoticeTimer {
 public:
  static constexpr TimeUs kFirstUs = 5'000'000;
  static constexpr TimeUs kAgainUs = 30'000'000;

  explicit NoticeTimer(TimeUs since_us) : since_us_(since_us), next_us_(since_us + kFirstUs) {}

  TimeUs next_us() const { return next_us_; }
  TimeUs waited_us(TimeUs now) const { return now - since_us_; }
  // True once for each notice.
  bool due(TimeUs now) {
    if (now < next_us_) return false;
    next_us_ = now + kAgainUs;
    return true;
  }

 private:
  TimeUs since_us_;
  TimeUs next_us_;
};

}  // namespace byteps::protocol
