#include "protocol/text.h"

#include <algorithm>
#include <cstdio>

namespace byteps::protocol {

std::string enumerate(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 8;
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kMostNames));
  if (names.size() > kMostNames) shown.push_back(std::to_string(names.size() - kMostNames) + " more");
  std::string text;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (i > 0) text += i + 1 == shown.size() ? " and " : ", ";
    text += shown[i];
  }
  return text;
}

std::string seconds(TimeUs duration_us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration_us) / 1e6);
  return text;
}

}  // namespace byteps::protocol
