// Recycles memory for contributions that wait for their round to complete: without system calls,
// and in steady state already faulted in and warm in cache. Buffers are carved out of a few large
// slabs (slab.h), so an RDMA device has few regions to register.
//
// Buffers of one size class are not used for another one. If sizes change all the time, slabs of
// which nothing is in use are given back before a new one is allocated, as soon as the pool has
// twice as much as was ever in use at the same time.
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
  struct Part;

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
      Part* part;
      size_t size;
      void operator()(std::byte* data) const { pool->release({data, part}, size); }
    };
    using Data = std::unique_ptr<std::byte, Return>;
    explicit Buffer(Data data) : data_(std::move(data)) {}
    Data data_;
  };

  // Slabs are parts of `region` as long as it has room, and are mapped after that.
  explicit BufferPool(MutableBytes region = {});
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Uninitialised. The size is rounded up internally by at most a quarter.
  Buffer acquire(size_t size_bytes);

  // Bytes of all buffers, in use or not.
  size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  struct Piece {
    std::byte* data;
    Part* part;
  };

  static size_t class_bytes(size_t size_bytes);
  Piece carve(size_t bytes);
  void release(Piece piece, size_t size_bytes);
  void give_back_idle_slabs();

  std::vector<std::unique_ptr<Part>> parts_;
  MutableBytes region_;  // the rest of it, without slabs
  MutableBytes unused_;  // the unused rest of the last slab
  // Free buffers by size class; LIFO, so the warmest is reused first.
  std::map<size_t, std::vector<Piece>> free_;
  size_t reserved_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_bytes_ = 0;
};

}  // namespace byteps
