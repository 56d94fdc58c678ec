#include "base/check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace byteps::internal_check {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  text_ << "byteps bug: " << file << ':' << line << ": " << condition << " is false: ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "pid %d: %s\n", static_cast<int>(getpid()), text_.str().c_str());
  std::abort();
}

}  // namespace byteps::internal_check
