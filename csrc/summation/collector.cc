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

void Collector::forget(const Child& connection) {
  std::erase(starving_, &connection);
  for_each_slot_of(connection.number(), [this, &connection](Contribution& contribution) {
    if (contribution.from != &connection) return;
    own(contribution);
    contribution.from = nullptr;
    contribution.lease = transport::kNoLease;
  });
}

void Collector::reclaim(Child& connection) {
  starving_.push_back(&connection);
  if (reclaim_timer_ != 0) return;
  reclaim_timer_ = environment_.loop.run_at(environment_.loop.now_us() + kReclaimUs, [this] {
    reclaim_timer_ = 0;
    return_leases();
  });
}

void Collector::return_leases() {
  for (Child* child : std::exchange(starving_, {})) {
    for_each_slot_of(child->number(), [this, child](Contribution& contribution) {
      if (contribution.from != child || contribution.lease == transport::kNoLease) return;
      own(contribution);
      child->return_lease(std::exchange(contribution.lease, transport::kNoLease));
    });
  }
}

void Collector::stop_timers() {
  tick_.stop();
  if (reclaim_timer_ != 0) environment_.loop.cancel(std::exchange(reclaim_timer_, 0));
}

}  // namespace byteps::summation
