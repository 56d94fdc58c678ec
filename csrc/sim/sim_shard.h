// One shard of a summation service, as summation/shard is: two tiers, a store and the children that speak to them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/outbox.h"
#include "protocol/tree.h"
#include "sim/sim_child.h"
#include "sim/sim_store.h"
#include "sim/sim_tier.h"
#include "sim/world.h"

namespace byteps::sim {

class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  virtual void on_child_lost(uint32_t rank, const Status& why) = 0;
  virtual void on_stalled(const protocol::Stalled& stalled) = 0;
};

// Where a service stands in the job.
struct Position {
  uint32_t epoch = 0;
  std::vector<std::string> describe_rank;
  protocol::Children machines;
  protocol::Children ranks;  // of this machine; empty: this service is nothing but a root
  ParentLink* parent_link = nullptr;
  uint32_t num_final_roots = 0;
  TimeUs silence_us = kNever;
};

class SimShard {
 public:
  // `outbox`: of the process.
  SimShard(World& world, VirtualProcess& process, protocol::Outbox& outbox, ShardEvents& events);

  void adopt(Endpoint& endpoint);
  void start(const Position& position);
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why);
  void rank_left(uint32_t rank);
  void fail(const Status& why);
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  void check_drained();

  // For its children.
  SimCollector* collector(protocol::Level level);
  bool has_child(const protocol::DataHead& hello) const;
  void on_goodbye(SimChild& child);
  void on_closed(SimChild& child, const Status& why);

 private:
  void forget(const SimChild& child);
  void finish_leaving_if_empty();
  template <typename F>
  void for_each_collector(F&& f);

  World& world_;
  VirtualProcess& process_;
  protocol::Outbox& outbox_;
  ShardEvents& events_;
  uint32_t epoch_ = 0;
  TimeUs silence_us_ = kNever;
  std::vector<std::string> describe_rank_;
  std::unique_ptr<SimTier> machine_;
  std::unique_ptr<SimTier> cluster_;  // null until start(), as is the store
  std::unique_ptr<SimStore> store_;
  std::vector<std::unique_ptr<SimChild>> children_;
  bool leaving_ = false;
  bool failed_ = false;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::sim
