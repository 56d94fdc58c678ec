// BPS_CHECK(condition) << "why": ends the process when an invariant of our own code is broken.
//
// For bugs only. Whatever a peer, a user, a file or the kernel can cause is a Status.
#pragma once

#include <sstream>

namespace byteps::internal_check {

// Prints file, line, condition and the streamed text, then aborts, when destroyed.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  std::ostream& stream() { return text_; }

 private:
  std::ostringstream text_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace byteps::internal_check

#define BPS_CHECK(condition)                  \
  __builtin_expect(!!(condition), 1)          \
      ? static_cast<void>(0)                  \
      : ::byteps::internal_check::Voidify() & \
            ::byteps::internal_check::CheckFailure(__FILE__, __LINE__, #condition).stream()
