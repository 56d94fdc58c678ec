// Formatting of texts for messages. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace byteps::protocol {

// "a, b and c"; of many only the first ones and the number of the others.
std::string enumerate(const std::vector<std::string>& names);
// "2.5 s".
std::string seconds(TimeUs duration_us);

}  // namespace byteps::protocol
