#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>

namespace byteps::log {
namespace {

// Process-wide on purpose, as standard error is.
std::atomic<int> g_level{static_cast<int>(Level::kWarning)};
std::mutex g_prefix_mutex;
std::string& prefix_locked() {
  static auto* prefix = new std::string("pid " + std::to_string(getpid()));
  return *prefix;
}

}  // namespace

Level level_from(const std::string& name) {
  if (name == "error") return Level::kError;
  if (name == "info") return Level::kInfo;
  return name == "debug" ? Level::kDebug : Level::kWarning;
}

void set_level(Level level) { g_level.store(static_cast<int>(level), std::memory_order_relaxed); }

void set_prefix(std::string prefix) {
  std::lock_guard lock(g_prefix_mutex);
  prefix_locked() = std::move(prefix);
}

bool enabled(Level level) { return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed); }

Line::Line(Level level, const char* file, int line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char time_text[32];
  std::snprintf(time_text, sizeof time_text, "%02d:%02d:%02d.%06ld", local.tm_hour, local.tm_min,
                local.tm_sec, now.tv_nsec / 1000);
  const char* base = std::strrchr(file, '/');
  std::lock_guard lock(g_prefix_mutex);
  text_ << "EWID"[static_cast<int>(level)] << ' ' << time_text << ' ' << prefix_locked() << ' '
        << (base ? base + 1 : file) << ':' << line << "] ";
}

Line::~Line() {
  text_ << '\n';
  const std::string line = text_.str();
  // One fwrite per line, so that lines of different threads do not mix.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace byteps::log
