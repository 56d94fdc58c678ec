// One segment of a process for all of its connections through shared memory, and for its copies from
// and to devices. What was copied from a device into it is lent to other processes where it is, and
// they write results where the copy to the device begins, so no processor copies it.
//
// All processes to which this one connects can access all of it; they are processes of the same
// user, and ranks of the same job.
#pragma once

#include <memory>
#include <utility>

#include "base/annotations.h"
#include "base/unique_fd.h"
#include "transport/shm/segment.h"

namespace byteps::transport {

// Thread-safe.
class SharedPool {
 public:
  // With `staging_bytes` for copies, less if the segment would be larger than kMaxSegmentBytes.
  // Memory is used when it is first written. Errors: as create_segment().
  static Result<std::shared_ptr<SharedPool>> create(size_t staging_bytes);

  int fd() const { return fd_.get(); }
  MutableBytes bytes() const { return segment_.bytes(); }
  // The part for copies.
  MutableBytes staging() const { return bytes().subspan(arenas_bytes_); }

  // Memory for the leases of a connection, which gets it for ever; empty if there is none left. (The
  // other end may write to it until it knows that the connection is closed.)
  MutableBytes take_arena(size_t bytes);

 private:
  SharedPool(UniqueFd fd, Segment segment, size_t arenas_bytes)
      : fd_(std::move(fd)), segment_(std::move(segment)), arenas_bytes_(arenas_bytes) {}

  const UniqueFd fd_;
  const Segment segment_;
  const size_t arenas_bytes_;
  Mutex mutex_;
  size_t taken_bytes_ BPS_GUARDED_BY(mutex_) = 0;
};

}  // namespace byteps::transport
