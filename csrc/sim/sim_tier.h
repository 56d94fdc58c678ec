// One level of one shard's trees, as summation/reduction_level is.
#pragma once

#include <map>

#include "protocol/aggregation.h"
#include "sim/sim_collector.h"

namespace byteps::sim {

// How a machine's partial sums reach the roots, as summation/parent_link is.
class ParentLink {
 public:
  virtual ~ParentLink() = default;
  virtual bool reaches(uint32_t root_node) const = 0;
  virtual void push_pull(const protocol::DataHead& head, const View& partial, const View& result,
                         UniqueFunction<void(const Result<protocol::Plan>&)> done) = 0;
  virtual void fail_round(const protocol::DataHead& head, const Status& why) = 0;
};

class SimTier final : public SimCollector {
 public:
  SimTier(Environment environment, protocol::Children children, protocol::WaitLimits limits,
          ParentLink* parent_link, uint32_t num_final_roots);

  int32_t child_of_rank(uint32_t rank) const override { return aggregator_.child_of_rank(rank); }
  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void add_repeat(uint32_t child, const protocol::DataHead& head, const View& payload) override;
  void child_gone(uint32_t child, const Status& why) override;
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;
  void check_drained() override;

 private:
  struct Round {
    Slots slots;
    View machine_sum;
    protocol::DataHead head;
    bool is_ascending = false;
    bool abandoned = false;
  };

  bool goes_up(uint32_t root_node) const { return parent_link_ != nullptr && root_node >= num_final_roots_; }
  void for_each_slot(const std::function<void(Contribution&)>& f) override;
  TimeUs next_tick_us() const override { return aggregator_.next_tick_us(); }
  void on_tick() override;

  void apply();
  void apply(const protocol::Complete& complete);
  void apply(const protocol::Fail& fail);
  void send_to_parent(const protocol::DataHead& head, Round& round);
  void on_result(protocol::DataHead head, const Result<protocol::Plan>& outcome);
  // Of what the slots hold; nothing if nobody has values.
  View reduce_slots(const protocol::DataHead& head, const Slots& slots) const;
  // What a mean counts each of the children.
  std::vector<uint32_t> weights() const;
  void answer(const protocol::DataHead& head, Slots& slots, const View& result);
  void fail_slots(const protocol::DataHead& head, Slots& slots, const Status& why);

  const protocol::Weights weights_;  // of the children, before those are the aggregator's
  protocol::Aggregator aggregator_;
  ParentLink* const parent_link_;
  const uint32_t num_final_roots_;
  std::map<protocol::Key, Round> rounds_;
  protocol::AggregationActions actions_;
  bool failed_ = false;
};

}  // namespace byteps::sim
