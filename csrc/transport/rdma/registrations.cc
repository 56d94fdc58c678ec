#include "transport/rdma/registrations.h"

#include <algorithm>
#include <utility>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

// NICs register whole pages.
MutableBytes whole_pages(Bytes range) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(range.data()) / kPageBytes * kPageBytes;
  const uintptr_t end = round_up(reinterpret_cast<uintptr_t>(range.data()) + range.size(), kPageBytes);
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

bool contains(Bytes whole, Bytes part) {
  return whole.data() <= part.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

Registrations::Registrations(Nic& nic, uint64_t max_idle_bytes) : nic_(nic), max_idle_bytes_(max_idle_bytes) {
  Slab::watch(this);
}

Registrations::~Registrations() { Slab::unwatch(this); }

Result<Registrations::Ref> Registrations::registration(Bytes range, Access access) {
  const auto slab = Slab::find(range);
  const uint64_t number = slab ? slab->number : 0;
  MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    auto region = serves(*entry, number, range, access) ? entry->in_use.lock() : nullptr;
    if (!region) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return region;
  }
  // Slabs are registered with both kinds of access, as results are sent from where contributions
  // were received.
  return add({.slab = number,
              .range = range,
              .bytes = slab ? slab->bytes : whole_pages(range),
              .access = slab ? Access::kRemoteWrite : access,
              .in_use = {},
              .kept = {}});
}

// Memory outside of slabs is known to be unchanged only in the range that has been held registered
// all the time. Neighbouring memory on the same pages may have been unmapped and mapped again.
bool Registrations::serves(const Entry& entry, uint64_t slab, Bytes range, Access access) const {
  if (entry.slab != slab || entry.access < access) return false;
  if (slab != 0 || nic_.info().on_demand_paging) return contains(entry.bytes, range);
  return entry.range.data() == range.data() && entry.range.size() == range.size();
}

Result<Registrations::Ref> Registrations::add(Entry entry) {
  std::erase_if(entries_, [](const Entry& each) { return each.in_use.expired(); });
  auto made = nic_.register_memory(entry.bytes, entry.access);
  if (!made) return made.status();
  ++made_;
  Ref region = std::move(*made);
  entry.in_use = region;
  if (entry.slab != 0 || nic_.info().on_demand_paging) entry.kept = region;
  entries_.push_front(std::move(entry));
  drop_idle();
  return region;
}

void Registrations::on_slab_gone(uint64_t number) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [number](const Entry& entry) { return entry.slab == number; });
}

void Registrations::drop_idle() {
  uint64_t idle_bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_idle = entry->kept && entry->kept.use_count() == 1;
    if (is_idle) idle_bytes += entry->bytes.size();
    entry = is_idle && idle_bytes > max_idle_bytes_ ? entries_.erase(entry) : std::next(entry);
  }
}

RegistrationCounts Registrations::counts() const {
  MutexLock lock(mutex_);
  RegistrationCounts counts{.made = made_};
  for (const Entry& entry : entries_) {
    if (entry.in_use.expired()) continue;
    ++counts.regions;
    counts.bytes += entry.bytes.size();
  }
  return counts;
}

}  // namespace byteps::transport::rdma
