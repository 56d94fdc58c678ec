// BPS_CHECK(condition) << "why": aborts the process when an internal invariant is broken. For bugs
// only: errors that a peer, a user, a file or the kernel can cause are reported as a Status.
#pragma once

#include <sstream>

namespace byteps::internal_check {

// On destruction, prints file, line, condition and the streamed text, then aborts.
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

// Makes a stream an operand of type void, for macros with a condition.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace byteps::internal_check

#define BPS_CHECK(condition)                  \
  __builtin_expect(!!(condition), 1)          \
      ? static_cast<void>(0)                  \
      : ::byteps::internal_check::Voidify() & \
            ::byteps::internal_check::CheckFailure(__FILE__, __LINE__, #condition).stream()
