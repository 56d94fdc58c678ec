#include "sim/sim_collector.h"

#include <algorithm>
#include <utility>

#include "sim/sim_child.h"
#include "sim/sim_link.h"

namespace byteps::sim {

using protocol::DataHead;

namespace {

constexpr TimeUs kReclaimUs = 5'000;  // as in summation/collector

}  // namespace

void SimCollector::place(Slots& slots, uint32_t child, Contribution contribution) const {
  slots.resize(environment_.num_workers);
  if (slots[child].present) world().report(process(), "a contribution is replaced by a later one");
  slots[child] = std::move(contribution);
}

void SimCollector::answer_failure(const DataHead& head, Contribution& slot, const Status& why) {
  const Contribution contribution = std::exchange(slot, {});
  if (contribution.from == nullptr) return;
  DataHead answer = head;
  answer.epoch = environment_.epoch;
  contribution.from->send_failure(answer, why, contribution.lease);
}

void SimCollector::own(Contribution& contribution) {
  if (contribution.lent && contribution.data) {
    contribution.data = make_view(world(), process(), contribution.data.read());
  }
  contribution.lent = false;
  contribution.reply_space = {};
}

void SimCollector::forget(const SimChild& connection) {
  std::erase(starving_, &connection);
  for_each_slot([&](Contribution& contribution) {
    if (contribution.from != &connection) return;
    own(contribution);
    contribution.from = nullptr;
    contribution.lease = kNoLease;
  });
}

void SimCollector::reclaim(SimChild& connection) {
  if (world().sabotage == Sabotage::kNeverRelieves) return;
  starving_.push_back(&connection);
  if (std::exchange(relief_is_due_, true)) return;
  process().at(world().clock.now() + kReclaimUs, [this] {
    relief_is_due_ = false;
    give_loans_back();
  });
}

void SimCollector::give_loans_back() {
  for (SimChild* child : std::exchange(starving_, {})) {
    for_each_slot([&](Contribution& contribution) {
      if (contribution.from != child || contribution.lease == kNoLease) return;
      own(contribution);
      child->return_lease(std::exchange(contribution.lease, kNoLease));
    });
  }
}

void SimCollector::schedule_tick() {
  const TimeUs next_us = next_tick_us();
  if (next_us >= tick_us_ || world().sabotage == Sabotage::kWithoutTicks) return;
  tick_us_ = next_us;
  process().at(next_us, [this, next_us] {
    if (tick_us_ != next_us) return;  // an earlier one has replaced this one
    tick_us_ = kNever;
    if (next_tick_us() <= world().clock.now()) on_tick();
    schedule_tick();
  });
}

void SimCollector::check_empty() {
  bool stored = false;
  for_each_slot([&stored](const Contribution& contribution) { stored = stored || contribution.present; });
  if (stored) world().report(process(), "contributions are kept when all is over");
}

void SimCollector::note(const DataHead& head, const std::string& what) const {
  world().note(process(), head.key.tensor * 1000 + head.round, [&] {
    return what + " tensor " + std::to_string(head.key.tensor) + "." + std::to_string(head.key.partition) +
           " round " + std::to_string(head.round);
  });
}

}  // namespace byteps::sim
