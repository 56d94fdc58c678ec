#include "base/buffer_pool.h"

#include <bit>
#include <new>
#include <utility>

namespace byteps {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr std::align_val_t kAlignment{kPageBytes};

}  // namespace

BufferPool::Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) pool_->release(data_, size_);
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

BufferPool::Buffer::~Buffer() {
  if (data_ != nullptr) pool_->release(data_, size_);
}

BufferPool::~BufferPool() {
  for (auto& [bytes, list] : free_) {
    for (std::byte* data : list) operator delete(data, kAlignment);
  }
}

// Powers of two and three steps between them.
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
    data = static_cast<std::byte*>(operator new(capacity, kAlignment));
    reserved_bytes_ += capacity;
  } else {
    data = list.back();
    list.pop_back();
  }
  return {this, data, size_bytes};
}

void BufferPool::release(std::byte* data, size_t size_bytes) {
  free_[class_bytes(size_bytes)].push_back(data);
}

}  // namespace byteps
