// One level of one shard: gathers the children's contributions, sums a round when it is complete, and answers every
// child; at the level of a machine the sum goes up to the root first, unless nothing is above.
//
// What is decided (complete? repeated? refused?) is protocol/aggregation's; this carries it out. All methods on the
// shard's loop. Contributions are not copied where the connection lends: they are read, and the result is written,
// where the child (inproc) or both (shm) have it. Nothing of a child's is touched after its answer was sent.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/buffer_pool.h"
#include "base/metrics.h"
#include "protocol/aggregation.h"
#include "summation/uplink.h"
#include "transport/transport.h"

namespace byteps::summation {

class Child;

// A contribution that waits for its round.
struct Contribution {
  BufferPool::Buffer buffer;  // empty: lent, or without values
  Bytes data;                 // in `buffer`, or lent; empty without a broadcast's root
  MutableBytes reply_space;   // of a lent one
  transport::Loan loan = transport::kNoLoan;
  Child* from = nullptr;  // null: none, or the child is gone
};

class Tier {
 public:
  // What a tier shares with its shard.
  struct Environment {
    transport::EventLoop& loop;
    Metrics& metrics;
    BufferPool& pool;
    uint32_t epoch;
    uint32_t num_workers;  // an average is over so many
  };
  // Sums go up through `uplink` (null: never) but for those whose top is a node below `num_final_tops`: they end here.
  Tier(Environment environment, protocol::Children children, protocol::AggregationLimits limits,
       Uplink* uplink, uint32_t num_final_tops);
  ~Tier();

  protocol::Aggregator& aggregator() { return aggregator_; }
  // Whether the root of such a contribution can be reached from here.
  bool leads_to(uint32_t top) const { return !goes_up(top) || uplink_->reaches(top); }

  // The payload is complete; the contribution is accepted or refused by now (Aggregator::admit).
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution);
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why);
  // The connection goes away, and its memory with it; its contributions still count.
  void forget(const Child& connection);
  // The child's end lacks memory to lend: contributions of it that have to wait are copied, so that it gets its own
  // back. Returns at once; what completes within a short while is not copied.
  void relieve(Child& connection);

  // As of Aggregator.
  void child_gone(uint32_t child, const Status& why);
  void fail_tensor(uint32_t tensor, const Status& why);
  // The job has failed: no lent memory is touched from here on.
  void fail(const Status& why);
  // Sets no timer any more.
  void stop_timers();

 private:
  bool goes_up(uint32_t top) const { return uplink_ != nullptr && top >= num_final_tops_; }

  using Slots = std::vector<Contribution>;  // by child

  // A round's memory, from its first contribution to its answers.
  struct Round {
    Slots slots;
    BufferPool::Buffer ascending;  // the partial sum, then the result; not empty: on its way up and down
    protocol::DataHead head;       // of what ascends
    bool abandoned = false;        // the children were answered already
  };

  void carry_out();
  void carry_out(const protocol::Complete& complete);
  void carry_out(const protocol::Fail& fail);
  void ascend(const protocol::DataHead& head, Round& round);
  void on_result(protocol::DataHead head, const Result<protocol::Plan>& outcome);
  // Reduces the slots. Into `result` if it is not empty, and into every reply space if `deliver`.
  void reduce(const protocol::DataHead& head, Slots& slots, MutableBytes result, bool deliver);
  void answer(const protocol::DataHead& head, Slots& slots, BufferPool::Buffer result);
  void answer_failure(const protocol::DataHead& head, Slots& slots, const Status& why);
  // Copies lent data, so that the loan is needed no longer.
  void own(Contribution& contribution);
  void give_loans_back();
  void schedule_tick();

  Environment environment_;
  protocol::Aggregator aggregator_;
  Uplink* const uplink_;
  const uint32_t num_final_tops_;
  std::unordered_map<protocol::Key, Round, protocol::KeyHash> rounds_;
  protocol::AggregationActions actions_;  // reused
  transport::EventLoop::TimerId tick_timer_ = 0;
  std::vector<Child*> starving_;
  transport::EventLoop::TimerId relief_timer_ = 0;
  bool failed_ = false;
};

}  // namespace byteps::summation
