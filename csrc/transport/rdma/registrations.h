// Cache of one NIC's memory registrations. Memory is registered once where that is safe, and in few
// regions.
//
// For a slab (base/slab.h), the whole slab is registered and stays registered until it is
// destroyed. Other memory belongs to a framework, which may free it when its push_pull is done.
// Other memory may then be mapped at the same addresses, and with a cached registration the NIC
// would read the old pages without an error. So these registrations end with their last reference,
// unless the NIC follows the process's mappings (on-demand paging).
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "base/annotations.h"
#include "base/slab.h"
#include "transport/rdma/nic.h"

namespace byteps::transport::rdma {

// Name, name in byteps.metrics(), meaning; see BPS_METRICS.
#define BPS_REGISTRATION_COUNTS(X)                                                 \
  X(made, "rdma_registrations", "number of registrations of memory at RDMA cards") \
  X(regions, "rdma_regions", "current number of registered regions")               \
  X(bytes, "rdma_bytes", "bytes of these regions, in whole pages")

struct RegistrationCounts {
#define BPS_MEMBER(name, metric, meaning) uint64_t name = 0;
  BPS_REGISTRATION_COUNTS(BPS_MEMBER)
#undef BPS_MEMBER
};

// Thread-safe. The Nic must outlive it and all references; a slab must outlive references to its
// memory.
class Registrations final : private SlabObserver {
 public:
  // `max_idle_bytes`: limit of registered bytes without references.
  explicit Registrations(Nic& nic, uint64_t max_idle_bytes = uint64_t{16} << 30);
  ~Registrations();

  // Keeps memory registered as long as it exists.
  using Ref = std::shared_ptr<const MemoryRegion>;

  // Registers `range` for reading and, with kRemoteWrite, for the peer's writes. It must stay
  // mapped as long as the reference exists.
  Result<Ref> registration(Bytes range, Access access);
  RegistrationCounts counts() const;

 private:
  struct Entry {
    uint64_t slab = 0;  // slab number; 0: other memory
    Bytes range;        // the requested range
    MutableBytes bytes;
    Access access = Access::kLocal;
    std::weak_ptr<const MemoryRegion> in_use;
    Ref kept;  // null: ends with its last reference
  };
  using Entries = std::list<Entry>;  // most recently used first

  bool serves(const Entry& entry, uint64_t slab, Bytes range, Access access) const;
  void on_slab_gone(uint64_t number) override;
  Result<Ref> add(Entry entry) BPS_REQUIRES(mutex_);
  void drop_idle() BPS_REQUIRES(mutex_);

  Nic& nic_;
  const uint64_t max_idle_bytes_;
  mutable Mutex mutex_;
  Entries entries_ BPS_GUARDED_BY(mutex_);
  uint64_t made_ BPS_GUARDED_BY(mutex_) = 0;
};

}  // namespace byteps::transport::rdma
