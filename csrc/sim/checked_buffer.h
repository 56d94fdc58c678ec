// Memory of a simulated program that detects writes after the runtime has finished with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bytes.h"

namespace byteps::sim {

class CheckedBuffer {
 public:
  explicit CheckedBuffer(size_t bytes) : data_(bytes) {}

  MutableBytes bytes() { return data_; }
  // The push_pull is done: any later write is an error. The memory stays valid, and a later read
  // gets bytes that make wrong results.
  void release() { std::fill(data_.begin(), data_.end(), kReleased); }
  bool was_written_after_release() const {
    return std::any_of(data_.begin(), data_.end(), [](std::byte each) { return each != kReleased; });
  }

 private:
  static constexpr std::byte kReleased{0xDB};

  std::vector<std::byte> data_;
};

}  // namespace byteps::sim
