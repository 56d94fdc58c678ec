#include "base/slab.h"

#include <sys/mman.h>

#include <map>
#include <set>

#include "base/annotations.h"
#include "base/numbers.h"

namespace byteps {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// All slabs of the process by start address. Process-wide, as memory is.
struct Registry {
  Mutex mutex;
  std::map<const std::byte*, Slab::Found> slabs BPS_GUARDED_BY(mutex);
  std::set<SlabObserver*> observers BPS_GUARDED_BY(mutex);
  uint64_t last_number BPS_GUARDED_BY(mutex) = 0;
};

Registry& registry() {
  // Never destroyed: slabs may outlive static objects.
  static Registry* const instance = new Registry;
  return *instance;
}

// Maps more than needed and unmaps both ends, so that the result is aligned.
MutableBytes map_aligned(size_t bytes, size_t alignment) {
  const size_t mapped_bytes = bytes + alignment - kPageBytes;
  void* const mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory(bytes);
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, alignment);
  if (aligned > begin) munmap(mapped, aligned - begin);
  const uintptr_t end = begin + mapped_bytes;
  if (end > aligned + bytes) munmap(reinterpret_cast<void*>(aligned + bytes), end - (aligned + bytes));
  return {reinterpret_cast<std::byte*>(aligned), bytes};
}

}  // namespace

Slab::Slab(size_t bytes) {
  const bool is_huge = bytes >= kHugePageBytes;
  bytes_ = map_aligned(round_up(bytes, kPageBytes), is_huge ? kHugePageBytes : kPageBytes);
  // Only a hint, so the result does not matter.
  if (is_huge) madvise(bytes_.data(), bytes_.size(), MADV_HUGEPAGE);
  enter();
}

Slab::Slab(MutableBytes bytes) : bytes_(bytes), is_mapped_here_(false) { enter(); }

void Slab::enter() {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  number_ = ++all.last_number;
  all.slabs[bytes_.data()] = {number_, bytes_};
}

Slab::~Slab() {
  {
    Registry& all = registry();
    MutexLock lock(all.mutex);
    all.slabs.erase(bytes_.data());
    for (SlabObserver* observer : all.observers) observer->on_slab_gone(number_);
  }
  if (is_mapped_here_) munmap(bytes_.data(), bytes_.size());
}

std::optional<Slab::Found> Slab::find(Bytes range) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  auto after = all.slabs.upper_bound(range.data());
  if (after == all.slabs.begin()) return std::nullopt;
  const Found& found = std::prev(after)->second;
  if (range.data() + range.size() > found.bytes.data() + found.bytes.size()) return std::nullopt;
  return found;
}

void Slab::watch(SlabObserver* observer) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  all.observers.insert(observer);
}

void Slab::unwatch(SlabObserver* observer) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  all.observers.erase(observer);
}

}  // namespace byteps
