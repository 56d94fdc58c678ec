// Host memory for copies from and to devices: pinned as far as the limit allows, plain otherwise.
//
// Pinned memory is registered with CUDA by slabs (base/slab.h), once. Nothing waits for it: ranks
// that use tensors in different orders would wait for each other for ever.
#pragma once

#include <cstdint>
#include <map>

#include "base/buffer_pool.h"
#include "base/slab.h"
#include "device/cuda_device.h"

namespace byteps::device {

// Not thread-safe. Must outlive its buffers, and these the copies that use them.
class StagingMemory final : private SlabObserver {
 public:
  // `shared`: used first; shared with the processes to which the buffers are sent.
  StagingMemory(const CudaDriver& driver, uint64_t max_pinned_bytes, MutableBytes shared = {});
  ~StagingMemory();

  struct Buffer {
    BufferPool::Buffer memory;
    bool is_pinned = false;
  };
  // `device`: its context is used to register memory. Throws OutOfMemory.
  Buffer acquire(const CudaDevice& device, size_t bytes);

 private:
  bool is_pinned(const CudaDevice& device, Bytes memory);
  void on_slab_gone(uint64_t number) override;

  const CudaDriver& driver_;
  const uint64_t max_pinned_bytes_;
  uint64_t pinned_bytes_ = 0;
  // By number; null: plain memory.
  std::map<uint64_t, MutableBytes> slabs_;
  BufferPool pool_;  // destroyed first, because its slabs are unregistered then
};

}  // namespace byteps::device
