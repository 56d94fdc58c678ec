// Registration of memory with a device of libibverbs.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_device.h"

namespace byteps::transport::rdma {

struct MemoryOptions {
  // Allows the NIC to reorder its writes into the memory. Completions are never reordered with
  // them, and the memory is not read before its completion.
  bool relaxed_ordering = true;
  bool on_demand_paging = false;
};

// Implementations of Nic's functions of the same names; thread-safe.
Result<std::unique_ptr<MemoryRegion>> register_memory(const VerbsDevice& device, MutableBytes memory,
                                                      Access access, const MemoryOptions& options);
Result<std::unique_ptr<MemoryRegion>> register_dmabuf(const VerbsDevice& device, int fd, uint64_t offset,
                                                      uint64_t bytes, uint64_t address, Access access,
                                                      const MemoryOptions& options);

// Whether the device supports memory that is not pinned; tries it with one page.
bool on_demand_paging_works(const VerbsDevice& device);

}  // namespace byteps::transport::rdma
