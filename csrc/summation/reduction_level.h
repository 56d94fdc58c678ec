// One level of one shard's trees: gathers the children's contributions, sums a round when it is complete, and answers
// every child; at the level of a machine the sum goes up to the root first, unless nothing is above.
//
// What is decided (complete? repeated? refused?) is protocol/aggregation's; this carries it out.
#pragma once

#include <unordered_map>

#include "protocol/aggregation.h"
#include "summation/collector.h"
#include "summation/parent_link.h"

namespace byteps::summation {

class ReductionLevel final : public Collector {
 public:
  // Sums go up through `parent_link` (null: never) but for those whose top is a node below `num_final_roots`: they end here.
  ReductionLevel(Environment environment, protocol::Children children, protocol::WaitLimits limits,
                 ParentLink* parent_link, uint32_t num_final_roots);

  int32_t child_of_rank(uint32_t rank) const override { return aggregator_.child_of_rank(rank); }
  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void child_gone(uint32_t child, const Status& why) override;
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;

 private:
  // A round's memory, from its first contribution to its answers.
  struct Round {
    Slots slots;
    BufferPool::Buffer
        send_to_parenting;    // the partial sum, then the result; not empty: on its way up and down
    protocol::DataHead head;  // of what send_to_parents
    bool abandoned = false;   // the children were answered already
  };

  bool goes_up(uint32_t root_node) const { return parent_link_ != nullptr && root_node >= num_final_roots_; }
  void for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) override;
  TimeUs next_tick_us() const override { return aggregator_.next_tick_us(); }
  void on_tick() override;

  void apply();
  void apply(const protocol::Complete& complete);
  void apply(const protocol::Fail& fail);
  void send_to_parent(const protocol::DataHead& head, Round& round);
  void on_result(protocol::DataHead head, const Result<protocol::Plan>& outcome);
  // What becomes of the values of `count` children. A mean is one at every level; a sum of integers is divided at the end.
  kernels::Reduction reduction(const protocol::DataHead& head, size_t count) const;
  // Reduces the slots. Into `result` if it is not empty, and into every reply space if `deliver`.
  void reduce_slots(const protocol::DataHead& head, const Slots& slots, MutableBytes result,
                    bool deliver) const;
  void answer(const protocol::DataHead& head, Slots& slots, BufferPool::Buffer result);
  void fail_slots(const protocol::DataHead& head, Slots& slots, const Status& why);

  const protocol::Weights weights_;  // of the children, before those are the aggregator's
  protocol::Aggregator aggregator_;
  ParentLink* const parent_link_;
  const uint32_t num_final_roots_;
  std::unordered_map<protocol::Key, Round, protocol::KeyHash> rounds_;
  protocol::AggregationActions actions_;  // reused
  bool failed_ = false;
};

}  // namespace byteps::summation
