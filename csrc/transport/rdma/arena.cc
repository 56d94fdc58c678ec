#include "transport/rdma/arena.h"

#include <algorithm>
#include <new>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

// Each slab is as large as all slabs before it together, so there are few regions and the reserved
// memory is at most twice the memory needed.
constexpr size_t kFirstSlabBytes = size_t{1} << 20;
constexpr size_t kLargestSlabBytes = size_t{256} << 20;

}  // namespace

struct Arena::Allocation::Part {
  explicit Part(size_t bytes) : slab(bytes), slots(slab.bytes().size()) {}
  Slab slab;
  Slots slots;
  Registrations::Ref registration;
};

void Arena::Allocation::PutBack::operator()(Part* part) const {
  part->slots.put_back(static_cast<size_t>(bytes.data() - part->slab.bytes().data()),
                       round_up(bytes.size(), kPageBytes));
}

MemoryKey Arena::Allocation::key() const { return part_->registration->key(); }

Arena::Arena(Registrations& registrations) : registrations_(registrations) {}
Arena::~Arena() = default;

Result<Arena::Allocation> Arena::take(size_t bytes) {
  const size_t slot_bytes = round_up(bytes, kPageBytes);
  for (Allocation::Part& part : parts_) {
    if (const auto offset = part.slots.take(slot_bytes))
      return Allocation(&part, part.slab.bytes().subspan(*offset, bytes));
  }
  const size_t slab_bytes =
      std::max(slot_bytes, std::clamp(total_bytes_, kFirstSlabBytes, kLargestSlabBytes));
  auto part = add(slab_bytes);
  // The limit of locked memory may still allow a small one.
  if (!part && slab_bytes > slot_bytes) part = add(slot_bytes);
  if (!part) return part.status();
  return Allocation(*part, (*part)->slab.bytes().subspan(*(*part)->slots.take(slot_bytes), bytes));
}

Result<Arena::Allocation::Part*> Arena::add(size_t slab_bytes) {
  try {
    parts_.emplace_back(slab_bytes);
  } catch (const std::bad_alloc&) {
    return unavailable("RDMA: no memory for " + std::to_string(slab_bytes) + " bytes of receive buffers");
  }
  auto registration = registrations_.registration(parts_.back().slab.bytes(), Access::kRemoteWrite);
  if (!registration) {
    parts_.pop_back();
    return registration.status();
  }
  parts_.back().registration = *registration;
  total_bytes_ += slab_bytes;
  return &parts_.back();
}

}  // namespace byteps::transport::rdma
