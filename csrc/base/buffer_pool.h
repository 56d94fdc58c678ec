// Memory for contributions that wait for their round: taken and given back without the allocator's system calls,
// warm in cache and already faulted in when a round follows a round. It comes out of few slabs (slab.h), so that a
// device to which it has to be made known hears of few pieces.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/slab.h"

namespace byteps {

// One thread. Must outlive its buffers.
class BufferPool {
 public:
  // Owner of some memory of a pool; gives it back when destroyed.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    // As many bytes as were asked for; aligned to a page.
    MutableBytes bytes() const { return {data_, size_}; }
    bool empty() const { return data_ == nullptr; }

   private:
    friend class BufferPool;
    Buffer(BufferPool* pool, std::byte* data, size_t size) : pool_(pool), data_(data), size_(size) {}
    BufferPool* pool_ = nullptr;
    std::byte* data_ = nullptr;
    size_t size_ = 0;
  };

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // `size_bytes` of uninitialised memory; rounded up internally by at most a quarter.
  Buffer acquire(size_t size_bytes);

  // Memory held, in use or not: the largest sum of what was in use at a time, by size class.
  size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  static size_t class_bytes(size_t size_bytes);
  std::byte* cut(size_t bytes);
  void release(std::byte* data, size_t size_bytes);

  std::vector<std::unique_ptr<Slab>> slabs_;
  MutableBytes uncut_;                              // of the last slab
  std::map<size_t, std::vector<std::byte*>> free_;  // by class; last in, first out: the warmest first
  size_t reserved_bytes_ = 0;
};

}  // namespace byteps
