#include "summation/store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "summation/child.h"
#include "summation/shard.h"

namespace byteps::summation {

using protocol::Answer;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;
using protocol::Keep;

Store::Store(Environment environment, protocol::Children ranks, protocol::WaitLimits limits)
    : Collector(environment), keeper_(std::move(ranks), limits) {}

int32_t Store::child_of_rank(uint32_t rank) const {
  return rank < keeper_.num_ranks() ? static_cast<int32_t>(rank) : -1;
}

Result<Store::Verdict> Store::admit(const DataHead& head, uint32_t child, uint64_t payload_bytes) const {
  BPS_CHECK(head.rank == child) << "rank " << head.rank << " on the connection of " << child;
  return keeper_.admit(head, payload_bytes);
}

void Store::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  Slots& slots = kept_[head.key].slots;
  slots.resize(keeper_.num_ranks());
  slots[child] = std::move(contribution);
  keeper_.on_contribution(head, now_us(), actions_);
  carry_out();
  schedule_tick();
}

void Store::contribute_failure(uint32_t, const DataHead&, const Status&) {
  BPS_CHECK(false) << "a rank fails by itself";
}

void Store::child_gone(uint32_t child, const Status& why) {
  keeper_.on_rank_gone(child, why, actions_);
  carry_out();
}

void Store::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  keeper_.fail_tensor(number, last_round, why, actions_);
  carry_out();
}

void Store::fail(const Status& why) {
  keeper_.fail_all(why, actions_);
  carry_out();
}

void Store::for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) {
  for (auto& [key, kept] : kept_) {
    if (child < kept.slots.size()) f(kept.slots[child]);
  }
}

void Store::on_tick() {
  keeper_.on_tick(now_us(), actions_);
  carry_out();
}

void Store::carry_out() {
  for (const protocol::KeeperAction& action : actions_) {
    if (const auto* keep = std::get_if<Keep>(&action)) carry_out(*keep);
    if (const auto* answer = std::get_if<Answer>(&action)) carry_out(*answer);
    if (const auto* fail = std::get_if<Fail>(&action)) {
      answer_failure(fail->head, kept_[fail->head.key].slots[fail->head.rank], fail->status);
    }
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
  actions_.clear();
}

void Store::carry_out(const Keep& keep) {
  Kept& kept = kept_[keep.head.key];
  Contribution& seed = kept.slots[keep.head.rank];
  BufferPool::Buffer value = std::move(seed.buffer);
  if (value.empty()) {
    value = environment_.pool.acquire(std::max<uint64_t>(keep.head.bytes, 1));
    copy_bytes(value.bytes().first(keep.head.bytes), seed.data);
  }
  seed.data = {};  // the rank may wait on, but its memory is needed no longer
  kept.value = std::make_shared<BufferPool::Buffer>(std::move(value));
}

void Store::carry_out(const Answer& answer) {
  Kept& kept = kept_[answer.key];
  add_up(answer, kept);
  for (const DataHead& head : answer.heads) send(head, kept);
}

void Store::add_up(const Answer& answer, Kept& kept) {
  const DataHead& first = answer.heads.front();
  std::vector<const void*> sources{kept.value->bytes().data()};
  std::vector<std::byte*> spaces{nullptr};  // the value's comes first
  for (const DataHead& head : answer.heads) {
    const Contribution& contribution = kept.slots[head.rank];
    const bool adds = head.op == ReduceOp::kAccumulate && !contribution.data.empty();
    if (adds) sources.push_back(contribution.data.data());
    if (!contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  if (sources.size() == 1) {  // nothing to add, and a copy keeps every bit
    const Bytes value = kept.value->bytes().first(first.bytes);
    for (size_t i = 1; i < spaces.size(); ++i) copy_bytes({spaces[i], first.bytes}, value);
    return;
  }
  if (kept.value.use_count() > 1) {  // on its way to somebody; answers end on this very thread
    kept.value = std::make_shared<BufferPool::Buffer>(environment_.pool.acquire(first.bytes));
  }
  spaces[0] = kept.value->bytes().data();
  reduce({.dtype = first.dtype, .op = ReduceOp::kSum}, std::move(sources), spaces, first.bytes);
}

void Store::send(const DataHead& head, Kept& kept) {
  const Contribution contribution = std::exchange(kept.slots[head.rank], {});
  if (contribution.from == nullptr) return;
  DataHead result = head;
  result.type = DataType::kResult;
  result.epoch = environment_.epoch;
  if (!contribution.reply_space.empty()) {
    contribution.from->send(result, {contribution.reply_space, {}, contribution.loan}, nullptr);
  } else {
    contribution.from->send(result, {kept.value->bytes().first(head.bytes), {}, contribution.loan},
                            kept.value);
  }
}

}  // namespace byteps::summation
