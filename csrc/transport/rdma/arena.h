// Memory of this end that other ends write to: rings, and receive_buffers for payloads. Cut out of few slabs, each of which the
// card knows as one region, however many connections there are.
#pragma once

#include <list>
#include <memory>

#include "base/slab.h"
#include "transport/rdma/registrations.h"
#include "transport/slots.h"

namespace byteps::transport::rdma {

// One thread; outlives its pieces.
class Arena {
 public:
  // Owner of some memory of an arena; gives it back when destroyed.
  class Allocation {
   public:
    Allocation() = default;
    Allocation(Allocation&& other) noexcept;
    Allocation& operator=(Allocation&& other) noexcept;
    ~Allocation();
    // Begins at a page.
    MutableBytes bytes() const { return bytes_; }
    MemoryKey key() const;
    explicit operator bool() const { return part_ != nullptr; }

   private:
    friend class Arena;
    struct Part;
    Allocation(Part* part, MutableBytes bytes) : part_(part), bytes_(bytes) {}
    Part* part_ = nullptr;
    MutableBytes bytes_;
  };

  explicit Arena(Registrations& registrations);
  ~Arena();

  // `bytes`: at least 1. Not initialised. Errors: as of Registrations::registration; or no memory.
  Result<Allocation> take(size_t bytes);

 private:
  Result<Allocation::Part*> grow(size_t bytes);
  Result<Allocation::Part*> add(size_t slab_bytes);

  Registrations& registrations_;
  std::list<Allocation::Part> parts_;
  size_t total_bytes_ = 0;
};

}  // namespace byteps::transport::rdma
