#include "summation/parameter_store.h"

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
using protocol::StoreFirstValue;

ParameterStore::ParameterStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits)
    : Collector(environment), tracker_(std::move(ranks), limits) {}

int32_t ParameterStore::child_of_rank(uint32_t rank) const {
  return rank < tracker_.num_ranks() ? static_cast<int32_t>(rank) : -1;
}

Result<ParameterStore::Verdict> ParameterStore::admit(const DataHead& head, uint32_t child,
                                                      uint64_t payload_bytes) const {
  BPS_CHECK(head.rank == child) << "rank " << head.rank << " on the connection of " << child;
  return tracker_.admit(head, payload_bytes);
}

void ParameterStore::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  Slots& slots = values_[head.key].slots;
  slots.resize(tracker_.num_ranks());
  slots[child] = std::move(contribution);
  tracker_.on_contribution(head, environment_.loop.now_us(), actions_);
  apply();
  schedule_tick();
}

void ParameterStore::contribute_failure(uint32_t, const DataHead&, const Status&) {
  BPS_CHECK(false) << "a parameter store accepts no failures of ranks";
}

void ParameterStore::child_gone(uint32_t child, const Status& why) {
  tracker_.on_rank_gone(child, why, actions_);
  apply();
}

void ParameterStore::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  tracker_.fail_tensor(number, last_round, why, actions_);
  apply();
}

void ParameterStore::fail(const Status& why) {
  tracker_.fail_all(why, actions_);
  apply();
}

void ParameterStore::for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) {
  for (auto& [key, stored] : values_) {
    if (child < stored.slots.size()) f(stored.slots[child]);
  }
}

void ParameterStore::on_tick() {
  tracker_.on_tick(environment_.loop.now_us(), actions_);
  apply();
}

void ParameterStore::apply() {
  for (const protocol::StalenessAction& action : actions_) {
    if (const auto* first = std::get_if<StoreFirstValue>(&action)) apply(*first);
    if (const auto* answer = std::get_if<Answer>(&action)) apply(*answer);
    if (const auto* fail = std::get_if<Fail>(&action)) {
      answer_failure(fail->head, values_[fail->head.key].slots[fail->head.rank], fail->status);
    }
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
  actions_.clear();
}

void ParameterStore::apply(const StoreFirstValue& first) {
  StoredValue& stored = values_[first.head.key];
  Contribution& seed = stored.slots[first.head.rank];
  BufferPool::Buffer value = std::move(seed.buffer);
  if (value.empty()) {
    value = environment_.pool.acquire(std::max<uint64_t>(first.head.bytes, 1));
    copy_bytes(value.bytes().first(first.head.bytes), seed.data);
  }
  seed.data = {};  // no longer needed, even if the rank waits longer for its answer
  stored.value = std::make_shared<BufferPool::Buffer>(std::move(value));
}

void ParameterStore::apply(const Answer& answer) {
  StoredValue& stored = values_[answer.key];
  add_up(answer, stored);
  for (const DataHead& head : answer.heads) send(head, stored);
}

void ParameterStore::add_up(const Answer& answer, StoredValue& stored) {
  const DataHead& first = answer.heads.front();
  std::vector<const void*> sources{stored.value->bytes().data()};
  std::vector<std::byte*> spaces{nullptr};  // [0]: the value, set below
  for (const DataHead& head : answer.heads) {
    const Contribution& contribution = stored.slots[head.rank];
    const bool adds = head.op == ReduceOp::kAccumulate && !contribution.data.empty();
    if (adds) sources.push_back(contribution.data.data());
    if (!contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  if (sources.size() == 1) {  // nothing to add; a copy preserves every bit
    const Bytes value = stored.value->bytes().first(first.bytes);
    for (size_t i = 1; i < spaces.size(); ++i) copy_bytes({spaces[i], first.bytes}, value);
    return;
  }
  if (stored.value.use_count() > 1) {  // being sent; only this thread releases it
    stored.value = std::make_shared<BufferPool::Buffer>(environment_.pool.acquire(first.bytes));
  }
  spaces[0] = stored.value->bytes().data();
  reduce({.dtype = first.dtype, .op = ReduceOp::kSum}, std::move(sources), spaces, first.bytes);
}

void ParameterStore::send(const DataHead& head, StoredValue& stored) {
  const Contribution contribution = std::exchange(stored.slots[head.rank], {});
  if (contribution.from == nullptr) return;
  DataHead result = head;
  result.type = DataType::kResult;
  result.epoch = environment_.epoch;
  if (!contribution.reply_space.empty()) {
    contribution.from->send(result, {contribution.reply_space, {}, contribution.lease}, nullptr);
  } else {
    contribution.from->send(result, {stored.value->bytes().first(head.bytes), {}, contribution.lease},
                            stored.value);
  }
}

}  // namespace byteps::summation
