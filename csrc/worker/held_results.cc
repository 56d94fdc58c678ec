#include "worker/held_results.h"

#include <malloc.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace byteps::worker {

using protocol::DataHead;
using protocol::Key;

namespace {

constexpr uint64_t kWorthTrimmingBytes = 16 << 20;

}  // namespace

HeldResults::Values HeldResults::memory_for(const Key& key, uint64_t bytes, bool is_stored) {
  {
    MutexLock lock(mutex_);
    const auto found = held_.find(key);
    if (found != held_.end() && (is_stored || found->second.result)) {
      Outcomes& outcomes = found->second;
      const Held last =
          is_stored ? std::exchange(outcomes.before, {}) : *std::exchange(outcomes.result, std::nullopt);
      Values values = last.values;
      if (last.head.bytes == bytes && values.use_count() == 2) return values;
    }
  }
  return std::make_shared_for_overwrite<std::byte[]>(bytes);
}

void HeldResults::keep(Held held) {
  // An empty result has no payload, so nothing has asked for memory. Without any it would be released.
  if (held.head.code == StatusCode::kOk && !held.values)
    held.values = std::make_shared_for_overwrite<std::byte[]>(0);
  MutexLock lock(mutex_);
  held.order = ++last_order_;
  Outcomes& outcomes = held_[held.head.key];
  if (held.head.code != StatusCode::kOk) {
    outcomes.failure = std::move(held);
  } else {
    if (held.rounds && outcomes.result) outcomes.before = std::move(*outcomes.result);
    outcomes.result = std::move(held);
    outcomes.failure.reset();  // of an earlier round, or there would be no result
  }
}

void HeldResults::drop(const Key& key) {
  MutexLock lock(mutex_);
  held_.erase(key);
}

bool HeldResults::is_empty() const {
  MutexLock lock(mutex_);
  return std::ranges::none_of(held_, [](const auto& each) {
    const auto& [result, failure, before] = each.second;
    return (result && result->values) || failure;
  });
}

uint64_t HeldResults::last_order() const {
  MutexLock lock(mutex_);
  return last_order_;
}

void HeldResults::release(const Link* link, uint64_t order) {
  uint64_t released_bytes = 0;
  {
    MutexLock lock(mutex_);
    for (auto& [key, outcomes] : held_) {
      std::optional<Held>& result = outcomes.result;
      const bool is_everywhere = result && result->at == link && result->order <= order;
      if (!is_everywhere || result->rounds || !result->values) continue;
      result->values = nullptr;
      released_bytes += result->head.bytes;
    }
  }
  // Else the allocator keeps it for this thread.
  if (released_bytes >= kWorthTrimmingBytes) malloc_trim(0);
}

void HeldResults::forget(const std::vector<protocol::ForgottenKeys>& keys) {
  MutexLock lock(mutex_);
  for (const protocol::ForgottenKeys& each : keys) {
    for (uint32_t partition = 0; partition < each.partitions; ++partition)
      held_.erase({each.tensor, partition});
  }
}

std::optional<HeldResults::Held> HeldResults::find(const Key& key, uint64_t round) const {
  MutexLock lock(mutex_);
  const auto found = held_.find(key);
  if (found == held_.end()) return std::nullopt;
  for (const auto* held : {&found->second.result, &found->second.failure}) {
    const bool is_here = *held && (*held)->head.round == round;
    if (is_here && ((*held)->values || (*held)->head.code != StatusCode::kOk)) return *held;
  }
  return std::nullopt;
}

std::vector<DataHead> HeldResults::at(const Link* link) const {
  std::vector<DataHead> heads;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, outcomes] : held_) {
      for (const auto* held : {&outcomes.result, &outcomes.failure}) {
        if (*held && (*held)->at == link) heads.push_back((*held)->head);
      }
    }
  }
  std::ranges::sort(heads, {}, [](const DataHead& head) { return std::pair(head.key, head.round); });
  return heads;
}

void HeldResults::move(const Key& key, uint64_t round, const Link* to) {
  MutexLock lock(mutex_);
  const auto found = held_.find(key);
  if (found == held_.end()) return;
  for (auto* held : {&found->second.result, &found->second.failure}) {
    if (!*held || (*held)->head.round != round) continue;
    (*held)->at = to;
    (*held)->order = UINT64_MAX;
  }
}

}  // namespace byteps::worker
