// Anonymous memory of two processes, freed when the last one that has it mapped ends.
#pragma once

#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace byteps::transport {

inline constexpr size_t kMaxSegmentBytes = size_t{1} << 31;

// Creates zero-filled memory (memfd_create(2)) with a sealed size, so that reading it never raises
// SIGBUS, whatever the other process does. kUnimplemented: not allowed on this machine or in this
// container.
Result<UniqueFd> create_segment(size_t bytes);

// A mapping of such memory. Not inherited by children of fork().
class Segment {
 public:
  // Maps `fd`, which may then be closed. It is not trusted: kDataLoss unless it is sealed as above.
  static Result<Segment> map(int fd);
  Segment(Segment&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  MutableBytes bytes() const { return bytes_; }

 private:
  explicit Segment(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

}  // namespace byteps::transport
