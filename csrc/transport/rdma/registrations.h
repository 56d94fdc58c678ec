// Which memory one network card knows. Memory is made known once where that is sound, and few pieces at a time.
//
// Of slabs (base/slab.h) a registration covers the whole slab and is kept until the slab goes. Other memory belongs to a
// framework, which may free it once its push_pull is done; what is mapped at its addresses next is other memory, of which
// a kept registration would know nothing, and the card would read the old pages without an error. So there a
// registration ends with its last registration, unless the card follows the process's memory (on-demand paging).
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "base/annotations.h"
#include "base/slab.h"
#include "transport/rdma/nic.h"

namespace byteps::transport::rdma {

struct RegistrationCounts {
  uint64_t made = 0;     // since the start
  uint64_t regions = 0;  // now
  uint64_t bytes = 0;    // now, in whole pages
};

// Any thread. The Nic outlives it and all registrations; a slab outlives the registrations of what is in it.
class Registrations final : private SlabObserver {
 public:
  // At most so many bytes are kept that no registration needs.
  explicit Registrations(Nic& nic, uint64_t max_idle_bytes = uint64_t{16} << 30);
  ~Registrations();

  // The card knows the memory while this is there. Keys are the registration's.
  class Ref {
   public:
    Ref() = default;
    MemoryKey key() const { return region_->key(); }
    explicit operator bool() const { return region_ != nullptr; }

   private:
    friend class Registrations;
    explicit Ref(std::shared_ptr<MemoryRegion> region) : region_(std::move(region)) {}
    std::shared_ptr<MemoryRegion> region_;
  };

  // `range` may be read and, with kRemoteWrite, written by writes. It stays mapped while the registration is there.
  Result<Ref> registration(Bytes range, Access access);
  RegistrationCounts counts() const;

 private:
  struct Entry {
    uint64_t slab = 0;  // its number; 0: other memory
    Bytes range;        // that was asked for
    MutableBytes bytes;
    Access access = Access::kLocal;
    std::weak_ptr<MemoryRegion> in_use;
    std::shared_ptr<MemoryRegion> kept;  // null: ends with its last registration
  };
  using Entries = std::list<Entry>;  // the last used one first

  bool serves(const Entry& entry, uint64_t slab, Bytes range, Access access) const;
  void on_slab_gone(uint64_t number) override;
  Result<Ref> add(Entry entry) BPS_REQUIRES(mutex_);
  void drop_ended() BPS_REQUIRES(mutex_);
  void drop_idle() BPS_REQUIRES(mutex_);

  Nic& nic_;
  const uint64_t max_idle_bytes_;
  mutable Mutex mutex_;
  Entries entries_ BPS_GUARDED_BY(mutex_);
  uint64_t made_ BPS_GUARDED_BY(mutex_) = 0;
};

}  // namespace byteps::transport::rdma
