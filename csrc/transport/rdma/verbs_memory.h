// Memory that a device of libibverbs may reach.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_device.h"

namespace byteps::transport::rdma {

struct MemoryOptions {
  // Writes into the memory may pass each other on the way from the card. What tells of them (a completion) never passes
  // them, and nothing here looks at memory before that.
  bool relaxed_ordering = true;
  bool on_demand_paging = false;
};

// As Nic's functions of these names; any thread.
Result<std::unique_ptr<MemoryRegion>> register_memory(const VerbsDevice& device, MutableBytes memory,
                                                      Access access, const MemoryOptions& options);
Result<std::unique_ptr<MemoryRegion>> register_dmabuf(const VerbsDevice& device, int fd, uint64_t offset,
                                                      uint64_t bytes, uint64_t address, Access access,
                                                      const MemoryOptions& options);

// Whether the device takes memory without pinning it: tried with a page.
bool on_demand_paging_works(const VerbsDevice& device);

}  // namespace byteps::transport::rdma
