// Memory of this process that peers write to: rings and receive buffers. Carved out of a few slabs,
// each of which is one region for the NIC, whatever the number of connections.
#pragma once

#include <list>
#include <memory>

#include "base/slab.h"
#include "transport/rdma/registrations.h"
#include "transport/slots.h"

namespace byteps::transport::rdma {

// Not thread-safe; must outlive its allocations.
class Arena {
 public:
  // Owns memory of an arena and returns it when destroyed.
  class Allocation {
   public:
    Allocation() = default;
    // Page-aligned.
    MutableBytes bytes() const { return part_ ? part_.get_deleter().bytes : MutableBytes(); }
    MemoryKey key() const;
    explicit operator bool() const { return part_ != nullptr; }

   private:
    friend class Arena;
    struct Part;
    struct PutBack {
      void operator()(Part* part) const;
      MutableBytes bytes;
    };
    Allocation(Part* part, MutableBytes bytes) : part_(part, PutBack{bytes}) {}
    std::unique_ptr<Part, PutBack> part_;
  };

  explicit Arena(Registrations& registrations);
  ~Arena();

  // Allocates `bytes` (at least 1) of uninitialised memory. Errors: those of
  // Registrations::registration, or out of memory.
  Result<Allocation> take(size_t bytes);

 private:
  Result<Allocation::Part*> add(size_t slab_bytes);

  Registrations& registrations_;
  std::list<Allocation::Part> parts_;
  size_t total_bytes_ = 0;
};

}  // namespace byteps::transport::rdma
