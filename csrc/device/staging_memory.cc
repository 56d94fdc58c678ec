#include "device/staging_memory.h"

#include <sys/mman.h>

#include <utility>

#include "base/log.h"

namespace byteps::device {

StagingMemory::StagingMemory(const CudaDriver& driver, uint64_t max_pinned_bytes, MutableBytes shared)
    : driver_(driver), max_pinned_bytes_(max_pinned_bytes), pool_(shared) {
  Slab::watch(this);
}

StagingMemory::~StagingMemory() {
  Slab::unwatch(this);
  for (const auto& [number, bytes] : slabs_) {
    if (!bytes.empty() && CudaDriver::is_usable_here()) driver_.functions().mem_host_unregister(bytes.data());
  }
}

StagingMemory::Buffer StagingMemory::acquire(const CudaDevice& device, size_t bytes) {
  BufferPool::Buffer memory = pool_.acquire(bytes);
  const bool pinned = is_pinned(device, memory.bytes());
  return {std::move(memory), pinned};
}

bool StagingMemory::is_pinned(const CudaDevice& device, Bytes memory) {
  const auto slab = Slab::find(memory);
  if (!slab) return false;
  const auto [found, is_new] = slabs_.try_emplace(slab->number);
  if (!is_new || pinned_bytes_ + slab->bytes.size() > max_pinned_bytes_) return !found->second.empty();
  // A child that writes to pinned pages first would leave the device with pages that are not the
  // parent's any more.
  madvise(slab->bytes.data(), slab->bytes.size(), MADV_DONTFORK);
  const CurrentContext current(device);
  const BesideCaptures beside(device);
  const Status status = device.status(
      "cuMemHostRegister",
      device.cu().mem_host_register(slab->bytes.data(), slab->bytes.size(), cuda::kHostRegisterPortable));
  if (!status.is_ok()) {
    BPS_LOG(kWarning) << status.message() << ": " << slab->bytes.size()
                      << " bytes are copied through plain memory, which is slower";
    return false;
  }
  found->second = slab->bytes;
  pinned_bytes_ += slab->bytes.size();
  return true;
}

// The pool destroys a slab on the thread that acquires a buffer.
void StagingMemory::on_slab_gone(uint64_t number) {
  const auto found = slabs_.find(number);
  if (found == slabs_.end()) return;
  if (!found->second.empty()) {
    pinned_bytes_ -= found->second.size();
    if (CudaDriver::is_usable_here()) driver_.functions().mem_host_unregister(found->second.data());
  }
  slabs_.erase(found);
}

}  // namespace byteps::device
