#include "summation/tier.h"

#include <utility>

#include "base/copy.h"
#include "summation/child.h"
#include "summation/shard.h"

namespace byteps::summation {

using protocol::Complete;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;

Tier::Tier(Environment environment, protocol::Children children, protocol::WaitLimits limits, Uplink* uplink,
           uint32_t num_final_tops)
    : Collector(environment),
      weights_(protocol::weights(children)),
      aggregator_(std::move(children), limits),
      uplink_(uplink),
      num_final_tops_(num_final_tops) {}

Result<Tier::Verdict> Tier::admit(const DataHead& head, uint32_t child, uint64_t payload_bytes) const {
  if (goes_up(head.top) && !uplink_->reaches(head.top)) {
    return data_loss("contribution: node " + std::to_string(head.top) + " cannot be the root of it");
  }
  return aggregator_.admit(head, child, payload_bytes);
}

void Tier::for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) {
  for (auto& [key, round] : rounds_) {
    if (child < round.slots.size()) f(round.slots[child]);
  }
}

void Tier::on_tick() {
  aggregator_.on_tick(now_us(), actions_);
  carry_out();
}

void Tier::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  Slots& slots = rounds_[head.key].slots;
  slots.resize(aggregator_.num_children());
  slots[child] = std::move(contribution);
  aggregator_.on_contribution(head, child, now_us(), actions_);
  carry_out();
  schedule_tick();
}

void Tier::contribute_failure(uint32_t child, const DataHead& head, const Status& why) {
  aggregator_.on_failed_contribution(head, child, why, actions_);
  carry_out();
}

void Tier::child_gone(uint32_t child, const Status& why) {
  aggregator_.on_child_gone(child, why, actions_);
  carry_out();
}

void Tier::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  aggregator_.fail_tensor(number, last_round, why, actions_);
  carry_out();
}

void Tier::fail(const Status& why) {
  failed_ = true;
  aggregator_.fail_all(why, actions_);
  carry_out();
  for (auto& [key, round] : rounds_) {
    if (round.ascending.empty() || std::exchange(round.abandoned, true)) continue;
    fail_slots(round.head, round.slots, why);
  }
}

void Tier::carry_out() {
  for (const protocol::AggregationAction& action : actions_) {
    if (const auto* complete = std::get_if<Complete>(&action)) carry_out(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) carry_out(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
  actions_.clear();
}

void Tier::carry_out(const Complete& complete) {
  const DataHead& head = complete.head;
  Round& round = rounds_[head.key];
  if (goes_up(head.top)) return ascend(head, round);
  BufferPool::Buffer result;
  bool all_have_space = true;
  for (Contribution& contribution : round.slots) {
    if (contribution.from != nullptr && contribution.reply_space.empty()) all_have_space = false;
    if (result.empty()) result = std::move(contribution.buffer);
  }
  if (result.empty() && !all_have_space) result = environment_.pool.acquire(head.bytes);
  reduce_slots(head, round.slots, result.bytes(), true);
  answer(head, round.slots, std::move(result));
}

void Tier::ascend(const DataHead& head, Round& round) {
  Bytes partial;
  for (Contribution& contribution : round.slots) {
    if (round.ascending.empty()) round.ascending = std::move(contribution.buffer);
    if (!contribution.data.empty()) partial = contribution.data;
  }
  if (round.ascending.empty()) round.ascending = environment_.pool.acquire(std::max<uint64_t>(head.bytes, 1));
  round.head = head;
  round.abandoned = false;
  const MutableBytes space = round.ascending.bytes().first(head.bytes);
  if (!partial.empty()) {
    reduce_slots(head, round.slots, space, false);
    partial = space;
  }
  for (Contribution& contribution : round.slots) contribution.data = {};
  uplink_->push_pull(environment_.loop, head, partial, space,
                     [this, head](const Result<protocol::Plan>& outcome) { on_result(head, outcome); });
}

void Tier::on_result(DataHead head, const Result<protocol::Plan>& outcome) {
  Round& round = rounds_[head.key];
  BufferPool::Buffer result = std::move(round.ascending);
  if (round.abandoned) return;
  if (!outcome) return fail_slots(head, round.slots, outcome.status());
  head.plan = *outcome;
  const Bytes values = result.bytes().first(head.bytes);
  for (const Contribution& contribution : round.slots) {
    if (!contribution.reply_space.empty()) {
      copy_bytes(contribution.reply_space, values);
    }
  }
  answer(head, round.slots, std::move(result));
}

void Tier::carry_out(const Fail& fail) {
  Slots& slots = rounds_[fail.head.key].slots;
  for (const uint32_t child : fail.children) answer_failure(fail.head, slots[child], fail.status);
  // The root learns why this machine does not contribute; when the whole job fails it knows.
  if (fail.ends_round && goes_up(fail.head.top) && !failed_) uplink_->fail_round(fail.head, fail.status);
}

void Tier::reduce_slots(const DataHead& head, const Slots& slots, MutableBytes result, bool deliver) const {
  std::vector<const void*> sources;
  std::vector<std::byte*> spaces;
  sources.reserve(slots.size());
  if (!result.empty()) spaces.push_back(result.data());
  for (const Contribution& contribution : slots) {
    if (!contribution.data.empty()) sources.push_back(contribution.data.data());
    if (deliver && !contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  const kernels::Reduction what = reduction(head, sources.size());
  reduce(what, std::move(sources), spaces, head.bytes);
}

kernels::Reduction Tier::reduction(const DataHead& head, size_t count) const {
  const bool is_average = head.op == ReduceOp::kAverage;
  if (is_average && !is_float(head.dtype)) {
    if (goes_up(head.top)) return {.dtype = head.dtype, .op = ReduceOp::kSum};
    return {.dtype = head.dtype, .op = head.op, .divisor = static_cast<int>(environment_.num_workers)};
  }
  // Of a broadcast, or of the only machine: what is a sum of one array of bytes is a copy that keeps every bit.
  if (count == 1) return {.dtype = DType::kUInt8, .op = ReduceOp::kSum};
  if (!is_average) return {.dtype = head.dtype, .op = head.op};
  const bool are_equal = weights_.total == weights_.of_child.size();
  return {.dtype = head.dtype,
          .op = head.op,
          .divisor = static_cast<int>(weights_.total),
          .weights = are_equal ? std::span<const uint32_t>() : weights_.of_child};
}

void Tier::answer(const DataHead& head, Slots& slots, BufferPool::Buffer result) {
  DataHead answer = head;
  answer.type = DataType::kResult;
  answer.epoch = environment_.epoch;
  const auto shared = std::make_shared<const BufferPool::Buffer>(std::move(result));
  for (Contribution& slot : slots) {
    const Contribution contribution = std::exchange(slot, {});
    if (contribution.from == nullptr) continue;
    const bool by_reference = !contribution.reply_space.empty();
    const Bytes values =
        by_reference ? Bytes(contribution.reply_space) : Bytes(shared->bytes()).first(head.bytes);
    contribution.from->send(answer, {values, {}, contribution.loan}, shared);
  }
}

void Tier::fail_slots(const DataHead& head, Slots& slots, const Status& why) {
  for (Contribution& slot : slots) answer_failure(head, slot, why);
}

}  // namespace byteps::summation
