#include "sim/sim_tier.h"

#include <algorithm>
#include <utility>

#include "sim/reduce.h"
#include "sim/sim_child.h"
#include "sim/sim_link.h"
#include "sim/sim_shard.h"

namespace byteps::sim {

using protocol::Complete;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;

SimTier::SimTier(Environment environment, protocol::Children children, protocol::WaitLimits limits,
                 ParentLink* parent_link, uint32_t num_final_roots)
    : SimCollector(environment),
      weights_(protocol::weights(children)),
      aggregator_(std::move(children), limits),
      parent_link_(parent_link),
      num_final_roots_(num_final_roots) {}

Result<SimTier::Verdict> SimTier::admit(const DataHead& head, uint32_t child, uint64_t payload_bytes) const {
  if (goes_up(head.root_node) && !parent_link_->reaches(head.root_node))
    return data_loss("no way to the root");
  return aggregator_.admit(head, child, payload_bytes);
}

void SimTier::for_each_slot(const std::function<void(Contribution&)>& f) {
  for (auto& [key, round] : rounds_) {
    for (Contribution& contribution : round.slots) f(contribution);
  }
}

void SimTier::on_tick() {
  aggregator_.on_tick(world().clock.now(), actions_);
  apply();
}

void SimTier::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  place(rounds_[head.key].slots, child, std::move(contribution));
  aggregator_.on_contribution(head, child, world().clock.now(), actions_);
  apply();
  schedule_tick();
}

void SimTier::contribute_failure(uint32_t child, const DataHead& head, const Status& why) {
  aggregator_.on_failed_contribution(head, child, why, actions_);
  apply();
}

void SimTier::add_repeat(uint32_t child, const DataHead& head, const View& payload) {
  const auto found = rounds_.find(head.key);
  if (found == rounds_.end() || payload.size == 0) return;
  const View data = found->second.slots[child].data;
  if (data.size == payload.size)
    reduce(head.dtype, ReduceOp::kSum, 1, {data.read(), payload.read()}, data.write());
}

void SimTier::child_gone(uint32_t child, const Status& why) {
  aggregator_.on_child_gone(child, why, actions_);
  apply();
}

void SimTier::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  aggregator_.fail_tensor(number, last_round, why, actions_);
  apply();
}

void SimTier::fail(const Status& why) {
  failed_ = true;
  aggregator_.fail_all(why, actions_);
  apply();
  for (auto& [key, round] : rounds_) {
    if (!round.is_ascending || std::exchange(round.abandoned, true)) continue;
    fail_slots(round.head, round.slots, why);
  }
  check_drained();
}

void SimTier::apply() {
  const auto actions = std::exchange(actions_, {});
  for (const protocol::AggregationAction& action : actions) {
    if (const auto* complete = std::get_if<Complete>(&action)) apply(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) apply(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
}

void SimTier::apply(const Complete& complete) {
  Round& round = rounds_[complete.head.key];
  if (goes_up(complete.head.root_node)) return send_to_parent(complete.head, round);
  note(complete.head, "completes");
  const View result = reduce_slots(complete.head, round.slots);
  for (const Contribution& contribution : round.slots) {
    if (contribution.reply_space) std::ranges::copy(result.read(), contribution.reply_space.write().begin());
  }
  answer(complete.head, round.slots, result);
}

void SimTier::send_to_parent(const DataHead& head, Round& round) {
  note(head, "passes up");
  const View partial = reduce_slots(head, round.slots);
  round.machine_sum = partial;
  if (partial.size == 0) {
    auto memory = std::make_shared<Memory>(world().findings, process().name() + ", result", head.bytes);
    round.machine_sum = {std::move(memory), 0, head.bytes};
  }
  round.head = head;
  round.is_ascending = true;
  round.abandoned = false;
  for (Contribution& contribution : round.slots) contribution.data = {};
  parent_link_->push_pull(head, partial, round.machine_sum,
                          [this, head](const Result<protocol::Plan>& outcome) { on_result(head, outcome); });
}

void SimTier::on_result(DataHead head, const Result<protocol::Plan>& outcome) {
  Round& round = rounds_[head.key];
  if (!std::exchange(round.is_ascending, false)) world().report(process(), "a partial sum came down twice");
  const View result = std::exchange(round.machine_sum, {});
  if (round.abandoned || !outcome) result.memory->release();
  if (round.abandoned) return;
  if (!outcome) return fail_slots(head, round.slots, outcome.status());
  head.plan = *outcome;
  for (const Contribution& contribution : round.slots) {
    if (contribution.reply_space) std::ranges::copy(result.read(), contribution.reply_space.write().begin());
  }
  answer(head, round.slots, result);
}

View SimTier::reduce_slots(const DataHead& head, const Slots& slots) const {
  std::vector<Bytes> sources;
  for (const Contribution& contribution : slots) {
    if (contribution.data.size > 0) sources.push_back(contribution.data.read());
  }
  if (sources.empty()) return {};
  auto memory = std::make_shared<Memory>(world().findings, process().name() + ", sum", head.bytes);
  const MutableBytes out = memory->use(0, head.bytes, "written");
  if (head.op == ReduceOp::kAverage && is_float(head.dtype)) {
    mean(weights(), sources, out);
  } else {
    const bool is_partial = goes_up(head.root_node) && world().sabotage != Sabotage::kDividesTwice;
    const bool only_sums = head.op == ReduceOp::kBroadcast || (head.op == ReduceOp::kAverage && is_partial);
    reduce(head.dtype, only_sums ? ReduceOp::kSum : head.op, environment_.num_workers, sources, out);
  }
  return {std::move(memory), 0, head.bytes};
}

std::vector<uint32_t> SimTier::weights() const {
  if (world().sabotage != Sabotage::kForgetsWeights) return weights_.of_child;
  return std::vector<uint32_t>(weights_.of_child.size(), 1);
}

void SimTier::answer(const DataHead& head, Slots& slots, const View& result) {
  DataHead answer = head;
  answer.type = DataType::kResult;
  answer.epoch = environment_.epoch;
  for (Contribution& slot : slots) {
    const Contribution contribution = std::exchange(slot, {});
    if (contribution.from == nullptr) continue;
    if (world().sabotage == Sabotage::kLosesAnswer && world().random.chance(0.01)) continue;
    contribution.from->send(answer, contribution.reply_space ? contribution.reply_space : result,
                            contribution.lease);
  }
}

void SimTier::fail_slots(const DataHead& head, Slots& slots, const Status& why) {
  for (Contribution& slot : slots) answer_failure(head, slot, why);
}

void SimTier::apply(const Fail& fail) {
  note(fail.head, "fails, because " + fail.status.message() + ",");
  Slots& slots = rounds_[fail.head.key].slots;
  for (const uint32_t child : fail.children) {
    if (!slots[child].present) world().report(process(), "a failure for a child that contributed nothing");
    answer_failure(fail.head, slots[child], fail.status);
  }
  if (world().sabotage == Sabotage::kKeepsFailures) return;
  if (fail.ends_round && goes_up(fail.head.root_node) && !failed_)
    parent_link_->fail_round(fail.head, fail.status);
}

void SimTier::check_drained() {
  if (aggregator_.gathering() > 0) world().report(process(), "rounds still wait when all is over");
  check_empty();
}

}  // namespace byteps::sim
