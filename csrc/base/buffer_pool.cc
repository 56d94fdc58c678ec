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

// A slab, and how much of it is carved and in use.
struct BufferPool::Part {
  explicit Part(size_t bytes) : slab(bytes) {}
  explicit Part(MutableBytes bytes) : slab(bytes), is_of_region(true) {}
  Slab slab;
  bool is_of_region = false;
  size_t carved_bytes = 0;
  size_t used_bytes = 0;
};

BufferPool::BufferPool(MutableBytes region) : region_(region) {}
BufferPool::~BufferPool() = default;

BufferPool::Buffer BufferPool::acquire(size_t size_bytes) {
  const size_t capacity = class_bytes(size_bytes);
  std::vector<Piece>& list = free_[capacity];
  Piece piece{};
  if (list.empty()) {
    piece = carve(capacity);
  } else {
    piece = list.back();
    list.pop_back();
  }
  piece.part->used_bytes += capacity;
  used_bytes_ += capacity;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return Buffer({piece.data, {this, piece.part, size_bytes}});
}

BufferPool::Piece BufferPool::carve(size_t capacity) {
  const size_t bytes = round_up(capacity, kPageBytes);  // keeps the next buffer page-aligned
  if (unused_.size() < bytes) {
    const size_t most_used = std::max({most_used_bytes_, used_bytes_ + bytes, kFirstSlabBytes});
    if (reserved_bytes_ + bytes > 2 * most_used) give_back_idle_slabs();
    const size_t slab_bytes = std::clamp(reserved_bytes_, kFirstSlabBytes, kLargestSlabBytes);
    const size_t wanted = round_up(std::max(bytes, slab_bytes), kPageBytes);
    if (wanted <= region_.size()) {
      parts_.push_back(std::make_unique<Part>(region_.first(wanted)));
      region_ = region_.subspan(wanted);
    } else {
      parts_.push_back(std::make_unique<Part>(wanted));
    }
    unused_ = parts_.back()->slab.bytes();
  }
  Part& part = *parts_.back();
  std::byte* const data = unused_.data();
  unused_ = unused_.subspan(bytes);
  part.carved_bytes += capacity;
  reserved_bytes_ += capacity;
  return {data, &part};
}

void BufferPool::give_back_idle_slabs() {
  for (auto& [capacity, list] : free_)
    std::erase_if(
        list, [](const Piece& piece) { return piece.part->used_bytes == 0 && !piece.part->is_of_region; });
  std::erase_if(parts_, [this](const auto& part) {
    if (part->used_bytes > 0 || part->is_of_region) return false;
    reserved_bytes_ -= part->carved_bytes;
    return true;
  });
  unused_ = {};
}

void BufferPool::release(Piece piece, size_t size_bytes) {
  const size_t capacity = class_bytes(size_bytes);
  piece.part->used_bytes -= capacity;
  used_bytes_ -= capacity;
  free_[capacity].push_back(piece);
}

}  // namespace byteps
