#include "summation/collector.h"

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "summation/child.h"

namespace byteps::summation {

using protocol::DataHead;

namespace {

// Blocks of all inputs and of the result fit into the first-level cache, so copying the result to a
// further reply space costs only the write.
constexpr size_t kBlockBytes = 8 << 10;
// Children that run in step complete their rounds in less time. For others, the time of a copy does
// not matter.
constexpr TimeUs kReclaimUs = 5'000;

}  // namespace

void Collector::reduce(const kernels::Reduction& reduction, std::vector<const void*> sources,
                       std::span<std::byte* const> spaces, size_t bytes) const {
  if (sources.empty() || spaces.empty()) return;
  const TimeUs started_us = environment_.loop.now_us();
  const size_t element_bytes = size_of(reduction.dtype);
  std::byte* const out = spaces.front();
  for (size_t offset = 0; offset < bytes; offset += kBlockBytes) {
    const size_t block_bytes = std::min<size_t>(kBlockBytes, bytes - offset);
    kernels::reduce_n(reduction, out + offset, sources, block_bytes / element_bytes);
    for (const void*& source : sources) source = static_cast<const std::byte*>(source) + block_bytes;
    for (size_t i = 1; i < spaces.size(); ++i) {
      copy_bytes({spaces[i] + offset, block_bytes}, {out + offset, block_bytes});
    }
  }
  add(environment_.metrics.sums, 1);
  add(environment_.metrics.sum_bytes, bytes);
  add(environment_.metrics.sum_us, static_cast<uint64_t>(environment_.loop.now_us() - started_us));
}

void Collector::answer_result(const DataHead& head, Contribution& slot,
                              const std::shared_ptr<const BufferPool::Buffer>& result) {
  const Contribution contribution = std::exchange(slot, {});
  if (contribution.from == nullptr) return;
  if (contribution.lease != transport::kNoLease) forget_starving(*contribution.from);
  DataHead answer = head;
  answer.type = protocol::DataType::kResult;
  answer.epoch = environment_.epoch;
  if (!contribution.reply_space.empty()) {
    contribution.from->send(answer, {contribution.reply_space, {}, contribution.lease}, nullptr);
  } else {
    const Bytes values = Bytes(result->bytes()).first(head.bytes);
    contribution.from->send(answer, {values, {}, contribution.lease}, result);
  }
}

void Collector::answer_failure(const DataHead& head, Contribution& slot, const Status& why) {
  const Contribution contribution = std::exchange(slot, {});
  if (contribution.from == nullptr) return;
  if (contribution.lease != transport::kNoLease) forget_starving(*contribution.from);
  DataHead answer = head;
  answer.epoch = environment_.epoch;
  contribution.from->send_failure(answer, why, contribution.lease);
}

void Collector::own(Contribution& contribution) {
  if (contribution.buffer.empty() && !contribution.data.empty()) {
    contribution.buffer = environment_.pool.acquire(contribution.data.size());
    copy_bytes(contribution.buffer.bytes(), contribution.data);
    contribution.data = contribution.buffer.bytes();
  }
  contribution.reply_space = {};
}

template <typename F>
void Collector::for_each_slot_of(uint32_t child, F&& f) {
  for (auto& [key, slots] : slots_) {
    if (child < slots.size()) f(slots[child]);
  }
}

Status Collector::too_early(const DataHead& head) {
  return data_loss("rank " + std::to_string(head.rank) + ": " + protocol::describe(head.key) +
                   ": a contribution before the answer to the last one");
}

void Collector::fetch(const protocol::Fetch& fetch) {
  const auto holder = holders_.find(fetch.rank);
  if (holder != holders_.end()) holder->second->send(fetch.head, {}, nullptr);
}

bool Collector::forget_holder(const Child& connection) {
  return std::erase_if(holders_, [&connection](const auto& each) { return each.second == &connection; }) > 0;
}

void Collector::forget(const Child& connection) {
  forget_starving(connection);
  for_each_slot_of(connection.number(), [this, &connection](Contribution& contribution) {
    if (contribution.from != &connection) return;
    own(contribution);
    contribution.from = nullptr;
    contribution.lease = transport::kNoLease;
  });
}

void Collector::reclaim(Child& connection) {
  forget_starving(connection);
  starving_.push_back({&connection, environment_.loop.now_us() + kReclaimUs});
  if (reclaim_timer_ == 0) reclaim_at(starving_.back().reclaim_at_us);
}

// Called when a lease of the child is returned: if one is not enough, the child says so again.
void Collector::forget_starving(const Child& child) {
  std::erase_if(starving_, [&child](const Starving& each) { return each.child == &child; });
}

void Collector::reclaim_at(TimeUs at_us) {
  reclaim_timer_ = environment_.loop.run_at(at_us, [this] {
    reclaim_timer_ = 0;
    reclaim_due();
  });
}

void Collector::reclaim_due() {
  const TimeUs now_us = environment_.loop.now_us();
  while (!starving_.empty() && starving_.front().reclaim_at_us <= now_us) {
    Child* const child = starving_.front().child;
    starving_.erase(starving_.begin());
    return_leases(*child);
  }
  if (!starving_.empty()) reclaim_at(starving_.front().reclaim_at_us);
}

void Collector::return_leases(Child& child) {
  for_each_slot_of(child.number(), [this, &child](Contribution& contribution) {
    if (contribution.from != &child || contribution.lease == transport::kNoLease) return;
    own(contribution);
    add(environment_.metrics.reclaimed, 1);
    child.return_lease(std::exchange(contribution.lease, transport::kNoLease));
  });
}

void Collector::stop_timers() {
  tick_.stop();
  if (reclaim_timer_ != 0) environment_.loop.cancel(std::exchange(reclaim_timer_, 0));
}

}  // namespace byteps::summation
