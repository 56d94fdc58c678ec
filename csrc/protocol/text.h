// Words for messages to people. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace byteps::protocol {

// "a, b and c"; of many only the first and how many more there are.
std::string enumerate(const std::vector<std::string>& names);
// "2.5 s".
std::string seconds(TimeUs duration_us);

}  // namespace byteps::protocol
