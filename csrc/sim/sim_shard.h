// One shard of a summation service, as summation/shard and summation/child are.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/aggregation.h"
#include "sim/world.h"

namespace byteps::sim {

class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  virtual void on_child_lost(uint32_t child, const Status& why) = 0;
};

class SimShard {
 public:
  SimShard(World& world, VirtualProcess& process, ShardEvents& events);

  void adopt(Endpoint& endpoint);
  void start(std::vector<std::string> describe, uint32_t epoch);
  void fail_tensor(uint32_t tensor, const Status& why);
  void child_left(uint32_t child);
  void fail(const Status& why);
  void leave(TimeUs deadline_us, UniqueFunction<void()> done);

  // Reports rounds that wait and contributions that are kept.
  void check_drained() const;

 private:
  // A worker's connection.
  struct Child final : Receiver {
    Child(SimShard& owner, Endpoint& end) : shard(owner), endpoint(end) {}
    void on_head(Endpoint&, const Frame& frame) override { shard.on_head(*this, frame); }
    void on_frame(Endpoint&, const Frame& frame) override { shard.on_frame(*this, frame); }
    void on_closed(Endpoint&, const Status& why) override { shard.on_closed(*this, why); }

    SimShard& shard;
    Endpoint& endpoint;
    int rank = -1;
    bool left = false;
    bool closed = false;
    std::optional<protocol::Aggregator::Verdict> verdict;  // between head and frame
  };
  struct Contribution {
    View data;
    View reply_space;
    Child* from = nullptr;  // null: none, or the child is gone
    bool present = false;
  };
  using Slots = std::vector<Contribution>;

  void on_head(Child& child, const Frame& frame);
  void on_frame(Child& child, const Frame& frame);
  void on_closed(Child& child, const Status& why);
  void on_push_pull(Child& child, const protocol::DataHead& head, const Frame& frame);
  void on_goodbye(Child& child);
  protocol::Aggregator::Verdict admit(const Child& child, const protocol::DataHead& head,
                                      size_t payload_bytes);
  void add_repeat(const Child& child, const protocol::DataHead& head, const View& payload);

  void carry_out();
  void carry_out(const protocol::Complete& complete);
  void carry_out(const protocol::Fail& fail);
  View reduce_slots(const protocol::DataHead& head, const Slots& slots);
  void schedule_tick();
  static void drop(Child& child);
  void finish_leaving_if_empty();

  World& world_;
  VirtualProcess& process_;
  ShardEvents& events_;
  std::vector<std::string> describe_;
  uint32_t epoch_ = 0;
  std::unique_ptr<protocol::Aggregator> aggregator_;  // null until start()
  std::map<protocol::Key, Slots> slots_;
  std::vector<std::unique_ptr<Child>> children_;
  protocol::AggregationActions actions_;
  bool ticking_ = false;
  bool leaving_ = false;
  bool failed_ = false;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::sim
