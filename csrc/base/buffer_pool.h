// Recycles memory for contributions that wait for their round to complete: without system calls,
// and in steady state already faulted in and warm in cache. Buffers are carved out of a few large
// slabs (slab.h), so an RDMA device has few regions to register.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/slab.h"

namespace byteps {

// Not thread-safe. Must outlive its buffers.
class BufferPool {
 public:
  // Owns memory of a pool and returns it to the pool when destroyed.
  class Buffer {
   public:
    Buffer() = default;
    // As many bytes as requested, page-aligned.
    MutableBytes bytes() const { return {data_.get(), empty() ? 0 : data_.get_deleter().size}; }
    bool empty() const { return data_ == nullptr; }

   private:
    friend class BufferPool;
    struct Return {
      BufferPool* pool;
      size_t size;
      void operator()(std::byte* data) const { pool->release(data, size); }
    };
    using Data = std::unique_ptr<std::byte, Return>;
    explicit Buffer(Data data) : data_(std::move(data)) {}
    Data data_;
  };

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Uninitialised. The size is rounded up internally by at most a quarter.
  Buffer acquire(size_t size_bytes);

  // Bytes held, in use or not: the sum over size classes of each class's peak usage.
  size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  static size_t class_bytes(size_t size_bytes);
  std::byte* carve(size_t bytes);
  void release(std::byte* data, size_t size_bytes);

  std::vector<std::unique_ptr<Slab>> slabs_;
  MutableBytes unused_;  // the unused rest of the last slab
  // Free buffers by size class; LIFO, so the warmest is reused first.
  std::map<size_t, std::vector<std::byte*>> free_;
  size_t reserved_bytes_ = 0;
};

}  // namespace byteps
