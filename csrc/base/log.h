// Logging to standard error, one line per event:
//   I 12:00:01.123456 r3 tcp_connection.cc:88] peer 10.0.0.2:9000 closed
//
// Any thread may log; lines of different threads do not mix. Events of single partitions are logged
// at kDebug only.
#pragma once

#include <sstream>
#include <string>

#include "base/check.h"

namespace byteps::log {

enum class Level : int { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// "error", "info" and "debug"; every other name is that of kWarning.
Level level_from(const std::string& name);

// Lines less severe than `level` are not even formatted. Default: kWarning.
void set_level(Level level);
// Identifies this process in mixed output, such as "r3" or "server 1". Default: "pid N".
void set_prefix(std::string prefix);

bool enabled(Level level);

// One line, written on destruction.
class Line {
 public:
  Line(Level level, const char* file, int line);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  std::ostream& stream() { return text_; }

 private:
  std::ostringstream text_;
};

}  // namespace byteps::log

#define BPS_LOG(level)                                 \
  !::byteps::log::enabled(::byteps::log::Level::level) \
      ? static_cast<void>(0)                           \
      : ::byteps::internal_check::Voidify() &          \
            ::byteps::log::Line(::byteps::log::Level::level, __FILE__, __LINE__).stream()
