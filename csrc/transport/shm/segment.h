// Memory that two processes share, without a name anywhere: it goes with the last process that has it mapped.
#pragma once

#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace byteps::transport {

inline constexpr size_t kMaxSegmentBytes = size_t{1} << 31;

// Zeros in memory of this size (memfd_create(2)), sealed so that nobody can change the size any more: reading it can
// never raise SIGBUS, whatever the other process does. kUnimplemented: this machine or container does not allow it.
Result<UniqueFd> create_segment(size_t bytes);

// A mapping of one. Children of fork() do not inherit it.
class Segment {
 public:
  // `fd` may come from anywhere: kDataLoss unless it is such memory, sealed as above. The mapping does not need it
  // any more.
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
