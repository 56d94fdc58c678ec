// The events of a run: always as a fingerprint, as text only on request.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sim/random.h"

namespace byteps::sim {

class Trace {
 public:
  explicit Trace(bool keep_text) : keep_text_(keep_text) {}

  // `describe` gives the text; `number` stands for it in the fingerprint.
  template <typename Describe>
  void note(TimeUs now, const std::string& who, uint64_t number, Describe&& describe) {
    fingerprint_ = mix(fingerprint_ ^ mix(static_cast<uint64_t>(now)) ^ (number << 1));
    if (keep_text_) lines_.push_back(time_text(now) + " " + who + ": " + std::forward<Describe>(describe)());
  }

  uint64_t fingerprint() const { return fingerprint_; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  static std::string time_text(TimeUs now) {
    std::string ms = std::to_string(now / 1000);
    std::string us = std::to_string(now % 1000);
    return std::string(ms.size() < 6 ? 6 - ms.size() : 0, ' ') + ms + "." + std::string(3 - us.size(), '0') +
           us;
  }

  bool keep_text_;
  uint64_t fingerprint_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace byteps::sim
