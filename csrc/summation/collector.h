// What a shard does with the contributions of one level (protocol::Level): a tier sums them, a store keeps their sum.
//
// Here is what both have in common: contributions are not copied where the connection lends, but read where the child
// (inproc) or both (shm) have them, and the result is written there; nothing of a child's is touched after its answer
// was sent. All methods on the shard's loop.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/buffer_pool.h"
#include "base/metrics.h"
#include "kernels/sum.h"
#include "protocol/aggregation.h"
#include "transport/lazy_timer.h"
#include "transport/transport.h"

namespace byteps::summation {

class Child;
class ShardEvents;

// A contribution that waits for its answer.
struct Contribution {
  BufferPool::Buffer buffer;  // empty: lent, or without values
  Bytes data;                 // in `buffer`, or lent; empty where only the root's values count
  MutableBytes reply_space;   // of a lent one
  transport::LeaseId lease = transport::kNoLease;
  Child* from = nullptr;  // null: none, or the child is gone
};

class Collector {
 public:
  // What a collector shares with its shard.
  struct Environment {
    transport::EventLoop& loop;
    Metrics& metrics;
    BufferPool& pool;
    ShardEvents& events;
    uint32_t epoch;
    uint32_t num_workers;  // an average is over so many
  };
  using Verdict = protocol::Aggregator::Verdict;

  virtual ~Collector() { stop_timers(); }

  // Which of the children speaks for `rank`; -1: none.
  virtual int32_t child_of_rank(uint32_t rank) const = 0;
  // As of Aggregator. kDataLoss, too: the root of such a contribution cannot be reached from here.
  virtual Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                                uint64_t payload_bytes) const = 0;
  // The payload is complete; the contribution is accepted or refused by now.
  virtual void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) = 0;
  virtual void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) = 0;
  virtual void child_gone(uint32_t child, const Status& why) = 0;
  virtual void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) = 0;
  // The job has failed: no lent memory is touched from here on.
  virtual void fail(const Status& why) = 0;

  // The connection goes away, and its memory with it; its contributions still count.
  void forget(const Child& connection);
  // The child's end lacks memory to lend: contributions of it that have to wait are copied, so that it gets its own
  // back. Returns at once; what completes within a short while is not copied.
  void reclaim(Child& connection);
  // Cancels those that are set.
  void stop_timers();

 protected:
  using Slots = std::vector<Contribution>;  // by child

  explicit Collector(Environment environment)
      : environment_(environment),
        tick_(environment.loop, [this] { return next_tick_us(); }, [this] { on_tick(); }) {}

  // Of one child, for all keys; those without a contribution as well.
  virtual void for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) = 0;
  virtual TimeUs next_tick_us() const = 0;
  virtual void on_tick() = 0;

  // To be called after what may have made next_tick_us() earlier.
  void schedule_tick() { tick_.update(); }
  void answer_failure(const protocol::DataHead& head, Contribution& slot, const Status& why);
  // The reduction of `sources`, [bytes] each, into all of `spaces`, in one pass. A space may be one of the sources.
  void reduce(const kernels::Reduction& reduction, std::vector<const void*> sources,
              std::span<std::byte* const> spaces, size_t bytes) const;

  Environment environment_;

 private:
  // Copies lent data, so that the lease is needed no longer.
  void own(Contribution& contribution);
  void give_loans_back();

  std::vector<Child*> starving_;
  transport::LazyTimer tick_;
  transport::EventLoop::TimerId reclaim_timer_ = 0;
};

}  // namespace byteps::summation
