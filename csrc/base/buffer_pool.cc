#include "base/buffer_pool.h"

#include <algorithm>
#include <bit>

#include "base/numbers.h"

namespace byteps {
namespace {

// Each slab is as large as all slabs before it together, so a large pool has few slabs and the
// reserved memory is at most twice the memory needed.
constexpr size_t kFirstSlabBytes = size_t{1} << 20;
constexpr size_t kLargestSlabBytes = size_t{64} << 20;

}  // namespace

// Size classes are the powers of two and three steps between each two of them.
size_t BufferPool::class_bytes(size_t size_bytes) {
  if (size_bytes <= kPageBytes) return kPageBytes;
  const size_t step = std::bit_floor(size_bytes - 1) / 4;
  return (size_bytes + step - 1) / step * step;
}

BufferPool::Buffer BufferPool::acquire(size_t size_bytes) {
  const size_t capacity = class_bytes(size_bytes);
  std::vector<std::byte*>& list = free_[capacity];
  std::byte* data = nullptr;
  if (list.empty()) {
    data = carve(capacity);
    reserved_bytes_ += capacity;
  } else {
    data = list.back();
    list.pop_back();
  }
  return Buffer({data, {this, size_bytes}});
}

std::byte* BufferPool::carve(size_t bytes) {
  bytes = round_up(bytes, kPageBytes);  // keeps the next buffer page-aligned
  if (unused_.size() < bytes) {
    const size_t slab_bytes = std::clamp(reserved_bytes_, kFirstSlabBytes, kLargestSlabBytes);
    slabs_.push_back(std::make_unique<Slab>(std::max(bytes, slab_bytes)));
    unused_ = slabs_.back()->bytes();
  }
  std::byte* const data = unused_.data();
  unused_ = unused_.subspan(bytes);
  return data;
}

void BufferPool::release(std::byte* data, size_t size_bytes) {
  free_[class_bytes(size_bytes)].push_back(data);
}

}  // namespace byteps
