#include "transport/shm/shared_pool.h"

#include <algorithm>

#include "base/numbers.h"

namespace byteps::transport {
namespace {

// Room for a hundred connections; pages that are not used take no memory.
constexpr size_t kArenasBytes = size_t{256} << 20;

}  // namespace

Result<std::shared_ptr<SharedPool>> SharedPool::create(size_t staging_bytes) {
  const size_t bytes =
      kArenasBytes + round_up(std::min(staging_bytes, kMaxSegmentBytes - kArenasBytes), kPageBytes);
  auto fd = create_segment(bytes);
  if (!fd) return fd.status();
  auto segment = Segment::map(fd->get());
  if (!segment) return segment.status();
  return std::shared_ptr<SharedPool>(new SharedPool(std::move(*fd), std::move(*segment), kArenasBytes));
}

MutableBytes SharedPool::take_arena(size_t bytes) {
  MutexLock lock(mutex_);
  const size_t rounded = round_up(bytes, kPageBytes);
  if (rounded > arenas_bytes_ - taken_bytes_) return {};
  const MutableBytes arena = segment_.bytes().subspan(taken_bytes_, bytes);
  taken_bytes_ += rounded;
  return arena;
}

}  // namespace byteps::transport
