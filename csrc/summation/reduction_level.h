// One level of the reduction tree in one shard: collects the contributions of the children, sums a
// round when it is complete, and answers every child. At the level of a machine, the sum first goes
// to the parent, unless it is final.
//
// protocol/aggregation.h decides which rounds are complete, repeated or refused.
#pragma once

#include <set>
#include <unordered_map>

#include "protocol/aggregation.h"
#include "protocol/takeover.h"
#include "summation/collector.h"

namespace byteps::summation {

// Sends the sums of a machine to the roots. node/parent_link.h implements it with links of the
// worker. Thread-safe.
class ParentLink {
 public:
  virtual ~ParentLink() = default;

  // Whether this service may contribute to the service of node `root_node`.
  virtual bool reaches(uint32_t root_node) const = 0;
  // Contributes `partial`, the sum of this machine, to the root. `partial` is empty in a broadcast
  // whose root rank is on another machine. The result is written to `result` (head.bytes bytes),
  // which may be the same memory. Both must stay valid until `done`, which is called on `loop`, the
  // caller's loop, with the plan of the answer or the error. Precondition: reaches(head.root_node).
  virtual void push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                         MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) = 0;
  // Tells the root that the round has failed on this machine, which will not contribute to it.
  virtual void fail_round(const protocol::DataHead& head, const Status& why) = 0;
};

class ReductionLevel final : public CollectorBy<protocol::Aggregator> {
 public:
  // Sums go to the root through `parent_link`. They are final here if it is null, or if the node of
  // the root is below `num_final_roots` (protocol::Tree).
  ReductionLevel(Environment environment, const protocol::Children& children, protocol::WaitLimits limits,
                 ParentLink* parent_link, uint32_t num_final_roots);

  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  void child_lingers(uint32_t child, const Status& why) override;
  void restart_waits() override;
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why) override;
  void forget(const protocol::ForgottenKeys& keys) override;
  void forget(const Child& connection) override;
  void on_holds(const protocol::DataHead& head, Bytes payload, Child& from) override;
  void on_released(const protocol::DataHead& head, Child& from) override;
  bool expects_held(const protocol::DataHead& head) const override { return takeover_.expects(head); }
  void on_held(const protocol::DataHead& head, Result<BufferPool::Buffer> values) override;
  void add_tensors(std::set<uint64_t>& numbers) const { decisions_.add_tensors(numbers); }
  void fail(const Status& why) override;

 private:
  // What the parent works on, for a key.
  struct Round {
    // The sum of this machine, then the result; not empty while the parent works on the round.
    BufferPool::Buffer machine_sum;
    protocol::DataHead head;  // head sent to the parent
    bool abandoned = false;   // the children have been answered before the parent has
  };

  bool goes_to_root(uint32_t root_node) const {
    return parent_link_ != nullptr && root_node >= num_final_roots_;
  }
  void apply() override;
  TimeUs next_tick_us() const override;
  void on_tick() override;
  void apply(const protocol::Complete& complete);
  void apply(const protocol::Fail& fail);
  void send_to_parent(const protocol::DataHead& head, Slots& slots);
  void on_result(protocol::DataHead head, const Result<protocol::Plan>& outcome);
  // The operation for the values of `count` children. Means of floats are computed at every level;
  // for integers the final sum is divided.
  kernels::Reduction reduction(const protocol::DataHead& head, size_t count) const;
  // Reduces the slots into `result`, unless it is empty, and into all reply spaces if `deliver`.
  void reduce_slots(const protocol::DataHead& head, const Slots& slots, MutableBytes result,
                    bool deliver) const;
  void answer(const protocol::DataHead& head, Slots& slots, BufferPool::Buffer result);
  void fail_slots(const protocol::DataHead& head, Slots& slots, const Status& why);

  const protocol::Weights weights_;
  ParentLink* const parent_link_;
  const uint32_t num_final_roots_;
  std::unordered_map<protocol::Key, Round, protocol::KeyHash> rounds_;
  protocol::Takeover takeover_;
  bool failed_ = false;
};

}  // namespace byteps::summation
