#include "sim/sim_store.h"

#include <algorithm>
#include <utility>

#include "sim/reduce.h"
#include "sim/sim_child.h"
#include "sim/sim_link.h"
#include "sim/sim_shard.h"

namespace byteps::sim {

using protocol::Answer;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;
using protocol::StoreFirstValue;

SimStore::SimStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits)
    : SimCollector(environment), tracker_(std::move(ranks), limits) {}

int32_t SimStore::child_of_rank(uint32_t rank) const {
  return rank < tracker_.num_ranks() ? static_cast<int32_t>(rank) : -1;
}

Result<SimStore::Verdict> SimStore::admit(const DataHead& head, uint32_t, uint64_t payload_bytes) const {
  return tracker_.admit(head, payload_bytes);
}

void SimStore::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  place(kept_[head.key].slots, child, std::move(contribution));
  DataHead believed = head;
  const bool is_bounded = head.staleness != protocol::kUnboundedStaleness;
  if (is_bounded && world().sabotage == Sabotage::kAnswersEarly) ++believed.staleness;
  tracker_.on_contribution(believed, world().clock.now(), actions_);
  apply();
  schedule_tick();
}

void SimStore::contribute_failure(uint32_t, const DataHead&, const Status&) {
  world().report(process(), "a rank failed in place of a machine");
}

void SimStore::add_repeat(uint32_t, const DataHead& head, const View& payload) {
  const View value = kept_[head.key].value;
  if (head.op != ReduceOp::kAccumulate || payload.size == 0 || value.size != payload.size) return;
  reduce(head.dtype, ReduceOp::kSum, 1, {value.read(), payload.read()}, value.write());
}

void SimStore::child_gone(uint32_t child, const Status& why) {
  tracker_.on_rank_gone(child, why, actions_);
  apply();
}

void SimStore::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  tracker_.fail_tensor(number, last_round, why, actions_);
  apply();
}

void SimStore::fail(const Status& why) {
  tracker_.fail_all(why, actions_);
  apply();
  check_drained();
}

void SimStore::for_each_slot(const std::function<void(Contribution&)>& f) {
  for (auto& [key, kept] : kept_) {
    for (Contribution& contribution : kept.slots) f(contribution);
  }
}

void SimStore::on_tick() {
  tracker_.on_tick(world().clock.now(), actions_);
  apply();
}

void SimStore::apply() {
  const auto actions = std::exchange(actions_, {});
  for (const protocol::StalenessAction& action : actions) {
    if (const auto* keep = std::get_if<StoreFirstValue>(&action)) apply(*keep);
    if (const auto* answer = std::get_if<Answer>(&action)) apply(*answer);
    if (const auto* fail = std::get_if<Fail>(&action)) apply(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
}

void SimStore::apply(const StoreFirstValue& keep) {
  note(keep.head, "keeps");
  Kept& kept = kept_[keep.head.key];
  if (std::exchange(kept.has_value, true)) world().report(process(), "a value is replaced by another seed");
  Contribution& seed = kept.slots[keep.head.rank];
  kept.value = make_view(world(), process(), seed.data.read());
  seed.data = {};
}

void SimStore::apply(const Answer& answer) {
  Kept& kept = kept_[answer.key];
  if (!kept.has_value) return world().report(process(), "an answer before the value");
  add_up(answer, kept);
  for (const DataHead& head : answer.heads) send(head, kept);
}

void SimStore::add_up(const Answer& answer, Kept& kept) {
  const DataHead& first = answer.heads.front();
  std::vector<Bytes> sources{kept.value.read()};
  for (const DataHead& head : answer.heads) {
    const View& data = kept.slots[head.rank].data;
    if (head.op != ReduceOp::kAccumulate || data.size == 0) continue;
    if (world().sabotage == Sabotage::kForgetsToAdd && world().random.chance(0.01)) continue;
    sources.push_back(data.read());
  }
  if (sources.size() > 1) {
    const bool in_use = kept.value.memory.use_count() > 1 && world().sabotage != Sabotage::kAddsWhileSending;
    const View sum = in_use ? make_view(world(), process(), kept.value.read()) : kept.value;
    reduce(first.dtype, ReduceOp::kSum, 1, sources, sum.write());
    kept.value = sum;
  }
  for (const DataHead& head : answer.heads) {
    const View& space = kept.slots[head.rank].reply_space;
    if (space) std::ranges::copy(kept.value.read(), space.write().begin());
  }
}

void SimStore::send(const DataHead& head, Kept& kept) {
  note(head, "answers rank " + std::to_string(head.rank) + " of");
  const Contribution contribution = std::exchange(kept.slots[head.rank], {});
  if (contribution.from == nullptr) return;
  if (world().sabotage == Sabotage::kLosesAnswer && world().random.chance(0.01)) return;
  DataHead result = head;
  result.type = DataType::kResult;
  result.epoch = environment_.epoch;
  contribution.from->send(result, contribution.reply_space ? contribution.reply_space : kept.value,
                          contribution.lease);
}

void SimStore::apply(const Fail& fail) {
  note(fail.head, "fails, because " + fail.status.message() + ",");
  Contribution& slot = kept_[fail.head.key].slots[fail.head.rank];
  if (!slot.present) world().report(process(), "a failure for a rank that contributed nothing");
  answer_failure(fail.head, slot, fail.status);
}

void SimStore::check_drained() {
  if (tracker_.waiting() > 0) world().report(process(), "contributions still wait when all is over");
  check_empty();
}

}  // namespace byteps::sim
