#include "sim/sim_shard.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {

SimShard::SimShard(World& world, VirtualProcess& process, protocol::Outbox& outbox, ShardEvents& events)
    : world_(world), process_(process), outbox_(outbox), events_(events) {}

void SimShard::adopt(Endpoint& endpoint) {
  if (leaving_) return endpoint.close();
  children_.push_back(std::make_unique<SimChild>(world_, process_, *this, outbox_, endpoint));
  if (cluster_) children_.back()->start(silence_us_);
}

void SimShard::start(const Position& position) {
  epoch_ = position.epoch;
  silence_us_ = position.silence_us;
  describe_rank_ = position.describe_rank;
  const auto num_workers = static_cast<uint32_t>(describe_rank_.size());
  const SimCollector::Environment environment{world_, process_, events_, epoch_, num_workers};
  TimeUs grace_us = world_.scenario.op_timeout_us;
  const auto limits = [&grace_us] {
    return protocol::WaitLimits{.stall_warning_us = grace_us / 3, .op_timeout_us = grace_us};
  };
  store_ = std::make_unique<SimStore>(environment, protocol::each_rank(describe_rank_), limits());
  if (!position.ranks.describe.empty()) {
    machine_ = std::make_unique<SimTier>(environment, position.ranks, limits(), position.parent_link,
                                         position.num_final_roots);
  }
  if (position.machines.describe.size() < num_workers) grace_us += grace_us / 4;
  cluster_ = std::make_unique<SimTier>(environment, position.machines, limits(), nullptr, 0);
  for (const auto& child : children_) child->start(silence_us_);
}

template <typename F>
void SimShard::for_each_collector(F&& f) {
  for (const protocol::Level level :
       {protocol::Level::kMachine, protocol::Level::kCluster, protocol::Level::kRanks}) {
    if (SimCollector* of_level = collector(level)) f(*of_level);
  }
}

SimCollector* SimShard::collector(protocol::Level level) {
  switch (level) {
    case protocol::Level::kMachine: return machine_.get();
    case protocol::Level::kCluster: return cluster_.get();
    case protocol::Level::kRanks: return store_.get();
  }
  return nullptr;
}

bool SimShard::has_child(const protocol::DataHead& hello) const {
  return std::ranges::any_of(children_,
                             [&](const auto& child) { return !child->closed() && child->is(hello); });
}

void SimShard::on_goodbye(SimChild& child) {
  if (child.rank() < 0) return;
  forget(child);
  rank_left(static_cast<uint32_t>(child.rank()));
}

void SimShard::forget(const SimChild& child) {
  for_each_collector([&child](SimCollector& collector) { collector.forget(child); });
}

void SimShard::rank_left(uint32_t rank) {
  for_each_collector([this, rank](SimCollector& collector) {
    const int32_t child = collector.child_of_rank(rank);
    if (child < 0) return;
    collector.child_gone(static_cast<uint32_t>(child),
                         unavailable(describe_rank_[rank] + " has left the job"));
  });
}

void SimShard::fail_tensor(uint32_t number, uint64_t last_round, const Status& why) {
  for_each_collector([&](SimCollector& collector) { collector.fail_tensor(number, last_round, why); });
}

void SimShard::fail(const Status& why) {
  failed_ = true;
  if (world_.sabotage == Sabotage::kKeepsLeases) return;
  for_each_collector([&why](SimCollector& collector) { collector.fail(why); });
  if (!leave_done_) return;
  for (const auto& child : children_) {  // one of them is the lost one, and would be waited for
    forget(*child);
    child->drop();
  }
  finish_leaving_if_empty();
}

void SimShard::on_closed(SimChild& child, const Status& why) {
  forget(child);
  if (child.rank() >= 0 && !child.has_left() && !leaving_)
    events_.on_child_lost(static_cast<uint32_t>(child.rank()), why);
  finish_leaving_if_empty();
}

void SimShard::leave(GracePeriod grace_period, UniqueFunction<void()> done) {
  leaving_ = true;
  leave_done_ = std::move(done);
  for (const auto& child : children_) {
    if (child->closed()) continue;
    if (!cluster_) {  // it was never listened to
      child->drop();
      continue;
    }
    child->leave(failed_ ? std::nullopt : std::optional(epoch_), grace_period);
  }
  finish_leaving_if_empty();
}

void SimShard::finish_leaving_if_empty() {
  const bool empty = std::ranges::all_of(children_, [](const auto& child) { return child->closed(); });
  if (leave_done_ && empty) std::exchange(leave_done_, nullptr)();
}

void SimShard::check_drained() {
  for_each_collector([](SimCollector& collector) { collector.check_drained(); });
}

}  // namespace byteps::sim
