// Captures this process's standard error, so that tests can wait for log lines.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace byteps {

class LogReader {
 public:
  LogReader() : stderr_(dup(STDERR_FILENO)) {
    std::array<int, 2> ends{};
    BPS_CHECK(pipe(ends.data()) == 0) << "no pipe";
    read_.reset(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~LogReader() { dup2(stderr_.get(), STDERR_FILENO); }

  // Returns false if `text` has not been logged by the deadline. Forgets the output before it.
  bool wait_for(const std::string& text, TimeUs deadline_us = now_us() + 20'000'000) {
    while (true) {
      if (const size_t at = log_.find(text); at != std::string::npos) {
        log_.erase(0, at + text.size());
        return true;
      }
      pollfd ready{read_.get(), POLLIN, 0};
      const TimeUs left_us = deadline_us - now_us();
      if (left_us <= 0 || poll(&ready, 1, static_cast<int>(left_us / 1000) + 1) < 0) return false;
      std::array<char, 4096> some{};
      if ((ready.revents & POLLIN) == 0) continue;
      log_.append(some.data(), static_cast<size_t>(read(read_.get(), some.data(), some.size())));
    }
  }

 private:
  UniqueFd stderr_;
  UniqueFd read_;
  std::string log_;
};

}  // namespace byteps
