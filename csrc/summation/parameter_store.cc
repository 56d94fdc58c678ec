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
using protocol::Fail;
using protocol::StoreFirstValue;

Result<ParameterStore::Verdict> ParameterStore::admit(const DataHead& head, uint32_t child,
                                                      uint64_t payload_bytes) const {
  BPS_CHECK(head.rank == child) << "rank " << head.rank << " on the connection of " << child;
  return decisions_.admit(head, payload_bytes);
}

void ParameterStore::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  slot(head.key, child) = std::move(contribution);
  decisions_.on_contribution(head, environment_.loop.now_us(), actions_);
  apply();
  schedule_tick();
}

void ParameterStore::contribute_failure(uint32_t, const DataHead&, const Status&) {
  BPS_CHECK(false) << "a parameter store accepts no failures of ranks";
}

void ParameterStore::apply() {
  for (const protocol::StalenessAction& action : actions_) {
    if (const auto* first = std::get_if<StoreFirstValue>(&action)) apply(*first);
    if (const auto* answer = std::get_if<Answer>(&action)) apply(*answer);
    if (const auto* fail = std::get_if<Fail>(&action)) {
      answer_failure(fail->head, slots_[fail->head.key][fail->head.rank], fail->status);
    }
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
  actions_.clear();
}

void ParameterStore::apply(const StoreFirstValue& first) {
  Contribution& seed = slots_[first.head.key][first.head.rank];
  BufferPool::Buffer value = std::move(seed.buffer);
  if (value.empty()) {
    value = environment_.pool.acquire(std::max<uint64_t>(first.head.bytes, 1));
    copy_bytes(value.bytes().first(first.head.bytes), seed.data);
  }
  seed.data = {};  // no longer needed, even if the rank waits longer for its answer
  values_[first.head.key] = std::make_shared<BufferPool::Buffer>(std::move(value));
}

void ParameterStore::add_up(const Answer& answer, Value& stored) {
  const Slots& slots = slots_[answer.key];
  const DataHead& first = answer.heads.front();
  std::vector<const void*> sources{stored->bytes().data()};
  std::vector<std::byte*> spaces{nullptr};  // [0]: the value, set below
  for (const DataHead& head : answer.heads) {
    const Contribution& contribution = slots[head.rank];
    const bool adds = head.op == ReduceOp::kAccumulate && !contribution.data.empty();
    if (adds) sources.push_back(contribution.data.data());
    if (!contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  if (sources.size() == 1) {  // nothing to add; a copy preserves every bit
    const Bytes value = stored->bytes().first(first.bytes);
    for (size_t i = 1; i < spaces.size(); ++i) copy_bytes({spaces[i], first.bytes}, value);
    return;
  }
  if (stored.use_count() > 1) {  // being sent; only this thread releases it
    stored = std::make_shared<BufferPool::Buffer>(environment_.pool.acquire(first.bytes));
  }
  spaces[0] = stored->bytes().data();
  reduce({.dtype = first.dtype, .op = ReduceOp::kSum}, std::move(sources), spaces, first.bytes);
}

void ParameterStore::apply(const Answer& answer) {
  Value& stored = values_[answer.key];
  add_up(answer, stored);
  for (const DataHead& head : answer.heads) answer_result(head, slots_[answer.key][head.rank], stored);
}

}  // namespace byteps::summation
