#include "summation/reduction_level.h"

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "summation/child.h"
#include "summation/shard.h"

namespace byteps::summation {

using protocol::Complete;
using protocol::DataHead;
using protocol::Fail;

ReductionLevel::ReductionLevel(Environment environment, const protocol::Children& children,
                               protocol::WaitLimits limits, ParentLink* parent_link, uint32_t num_final_roots)
    : CollectorBy(environment, children, limits),
      weights_(protocol::weights(children)),
      parent_link_(parent_link),
      num_final_roots_(num_final_roots),
      takeover_(children, limits) {}

Result<ReductionLevel::Verdict> ReductionLevel::admit(const DataHead& head, uint32_t child,
                                                      uint64_t payload_bytes) const {
  if (goes_to_root(head.root_node) && !parent_link_->reaches(head.root_node)) {
    return data_loss("contribution: node " + std::to_string(head.root_node) + " cannot be the root of it");
  }
  const Result<Verdict> verdict = decisions_.admit(head, child, payload_bytes);
  if (verdict && *verdict != Verdict::kRepeat && takeover_.waits(head.key, child)) {
    return too_early(head);
  }
  return verdict;
}

void ReductionLevel::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  slot(head.key, child) = std::move(contribution);
  decisions_.on_contribution(head, child, environment_.loop.now_us(), actions_);
  apply();
  schedule_tick();
}

void ReductionLevel::contribute_failure(uint32_t child, const DataHead& head, const Status& why) {
  decisions_.on_failed_contribution(head, child, why, actions_);
  apply();
}

void ReductionLevel::child_lingers(uint32_t child, const Status& why) {
  decisions_.on_child_lingers(child, why, actions_);
  apply();
}

void ReductionLevel::restart_waits() {
  takeover_.restart_waits(environment_.loop.now_us());
  CollectorBy::restart_waits();
}

void ReductionLevel::fail_tensor(uint64_t number, uint64_t last_round, const Status& why) {
  takeover_.fail_tensor(number, last_round, why, actions_);
  CollectorBy::fail_tensor(number, last_round, why);
}

TimeUs ReductionLevel::next_tick_us() const {
  return std::min(CollectorBy::next_tick_us(), takeover_.next_tick_us());
}

void ReductionLevel::on_tick() {
  const TimeUs now_us = environment_.loop.now_us();
  takeover_.on_tick(now_us, actions_);
  decisions_.on_tick(now_us, actions_);
  apply();
}

void ReductionLevel::forget(const Child& connection) {
  Collector::forget(connection);
  if (!forget_holder(connection)) return;
  takeover_.on_rank_gone(static_cast<uint32_t>(connection.rank()), actions_);
  apply();
}

void ReductionLevel::on_holds(const DataHead& head, Bytes, Child& from) {
  add_holder(head, from);
  decisions_.on_holds(head.key, head.round, from.number(), actions_);
  takeover_.on_holds(head, actions_);
  apply();
  schedule_tick();
}

// Some other child holds it, if one needs it.
void ReductionLevel::on_released(const DataHead& head, Child& from) {
  decisions_.on_holds(head.key, head.round, from.number(), actions_);
  apply();
  schedule_tick();
}

void ReductionLevel::on_held(const DataHead& head, Result<BufferPool::Buffer> values) {
  Slots& slots = slots_[head.key];
  const std::vector<uint32_t> waiting = takeover_.take(head);
  if (!values) {
    for (const uint32_t child : waiting) answer_failure(head, slots[child], values.status());
    return;
  }
  const auto shared = std::make_shared<const BufferPool::Buffer>(std::move(*values));
  for (const uint32_t child : waiting) {
    Contribution& slot = slots[child];
    if (!slot.reply_space.empty()) copy_bytes(slot.reply_space, Bytes(shared->bytes()).first(head.bytes));
    answer_result(head, slot, shared);
  }
}

void ReductionLevel::forget(const protocol::ForgottenKeys& keys) {
  decisions_.forget_tensor(keys.tensor);
  for (uint32_t partition = 0; partition < keys.partitions; ++partition) {
    const protocol::Key key{keys.tensor, partition};
    const auto round = rounds_.find(key);
    const bool is_at_parent = round != rounds_.end() && !round->second.machine_sum.empty();
    if (is_at_parent || !decisions_.forget(key)) continue;
    slots_.erase(key);
    rounds_.erase(key);
    takeover_.forget(key);
  }
}

void ReductionLevel::fail(const Status& why) {
  failed_ = true;
  takeover_.fail_all(why, actions_);
  CollectorBy::fail(why);
  for (auto& [key, round] : rounds_) {
    if (round.machine_sum.empty() || std::exchange(round.abandoned, true)) continue;
    fail_slots(round.head, slots_[key], why);
  }
}

// A Park is carried out at once, and may add a Fetch.
void ReductionLevel::apply() {
  for (size_t i = 0; i < actions_.size(); ++i) {
    if (!std::holds_alternative<protocol::Park>(actions_[i])) continue;
    const auto park = std::get<protocol::Park>(std::move(actions_[i]));
    takeover_.park(park.head, park.children, environment_.loop.now_us(), actions_);
  }
  for (const protocol::AggregationAction& action : actions_) {
    if (const auto* complete = std::get_if<Complete>(&action)) apply(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) apply(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
    if (const auto* fetch = std::get_if<protocol::Fetch>(&action)) Collector::fetch(*fetch);
  }
  actions_.clear();
}

void ReductionLevel::apply(const Complete& complete) {
  const DataHead& head = complete.head;
  Slots& slots = slots_[head.key];
  takeover_.on_complete(head.key, head.round);
  if (goes_to_root(head.root_node)) return send_to_parent(head, slots);
  BufferPool::Buffer result;
  bool all_have_space = true;
  for (Contribution& contribution : slots) {
    if (contribution.from != nullptr && contribution.reply_space.empty()) all_have_space = false;
    if (result.empty()) result = std::move(contribution.buffer);
  }
  if (result.empty() && !all_have_space) result = environment_.pool.acquire(head.bytes);
  reduce_slots(head, slots, result.bytes(), true);
  answer(head, slots, std::move(result));
}

void ReductionLevel::send_to_parent(const DataHead& head, Slots& slots) {
  Round& round = rounds_[head.key];
  Bytes partial;
  for (Contribution& contribution : slots) {
    if (round.machine_sum.empty()) round.machine_sum = std::move(contribution.buffer);
    if (!contribution.data.empty()) partial = contribution.data;
  }
  if (round.machine_sum.empty())
    round.machine_sum = environment_.pool.acquire(std::max<uint64_t>(head.bytes, 1));
  round.head = head;
  round.abandoned = false;
  const MutableBytes space = round.machine_sum.bytes().first(head.bytes);
  if (!partial.empty()) {
    reduce_slots(head, slots, space, false);
    partial = space;
  }
  for (Contribution& contribution : slots) contribution.data = {};
  parent_link_->push_pull(environment_.loop, head, partial, space,
                          [this, head](const Result<protocol::Plan>& outcome) { on_result(head, outcome); });
}

void ReductionLevel::on_result(DataHead head, const Result<protocol::Plan>& outcome) {
  Round& round = rounds_[head.key];
  BufferPool::Buffer result = std::move(round.machine_sum);
  if (round.abandoned) return;
  Slots& slots = slots_[head.key];
  if (!outcome) return fail_slots(head, slots, outcome.status());
  head.plan = *outcome;
  const Bytes values = result.bytes().first(head.bytes);
  for (const Contribution& contribution : slots) {
    if (!contribution.reply_space.empty()) copy_bytes(contribution.reply_space, values);
  }
  answer(head, slots, std::move(result));
}

void ReductionLevel::apply(const Fail& fail) {
  for (const uint32_t child : fail.children)
    answer_failure(fail.head, slots_.at(fail.head.key)[child], fail.status);
  // Tells the root why this machine does not contribute, unless the job has failed.
  if (fail.ends_round && goes_to_root(fail.head.root_node) && !failed_)
    parent_link_->fail_round(fail.head, fail.status);
}

void ReductionLevel::reduce_slots(const DataHead& head, const Slots& slots, MutableBytes result,
                                  bool deliver) const {
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

kernels::Reduction ReductionLevel::reduction(const DataHead& head, size_t count) const {
  const bool is_average = head.op == ReduceOp::kAverage;
  if (is_average && !is_float(head.dtype)) {
    if (goes_to_root(head.root_node)) return {.dtype = head.dtype, .op = ReduceOp::kSum};
    return {.dtype = head.dtype, .op = head.op, .divisor = static_cast<int>(environment_.num_workers)};
  }
  // One array (a broadcast, or the only machine) is copied, as a sum of bytes, which preserves
  // every bit.
  if (count == 1) return {.dtype = DType::kUInt8, .op = ReduceOp::kSum};
  if (!is_average) return {.dtype = head.dtype, .op = head.op};
  const bool are_equal = weights_.total == weights_.of_child.size();
  return {.dtype = head.dtype,
          .op = head.op,
          .divisor = static_cast<int>(weights_.total),
          .weights = are_equal ? std::span<const uint32_t>() : weights_.of_child};
}

void ReductionLevel::answer(const DataHead& head, Slots& slots, BufferPool::Buffer result) {
  const auto shared = std::make_shared<const BufferPool::Buffer>(std::move(result));
  for (Contribution& slot : slots) answer_result(head, slot, shared);
}

void ReductionLevel::fail_slots(const DataHead& head, Slots& slots, const Status& why) {
  for (Contribution& slot : slots) answer_failure(head, slot, why);
}

}  // namespace byteps::summation
