// Base classes for what a shard does with the contributions of one level (protocol::Level): a
// ReductionLevel sums them, a ParameterStore adds them to stored values.
//
// If a connection leases memory (transport/transport.h), contributions are not copied: they are
// read where they arrive, which may be the child's own memory (inproc), and results are written to
// the reply space. Leased memory is never used after the answer was sent. All methods run on the
// shard's loop.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
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
  BufferPool::Buffer buffer;  // empty if `data` is leased or empty
  Bytes data;                 // in `buffer`, or leased; empty if only the root's values count
  MutableBytes reply_space;   // leased memory for the answer, or empty
  transport::LeaseId lease = transport::kNoLease;
  Child* from = nullptr;  // null: no contribution, or its connection is closed
};

class Collector {
 public:
  // Members of the shard that its collectors use.
  struct Environment {
    transport::EventLoop& loop;
    Metrics& metrics;
    BufferPool& pool;
    ShardEvents& events;
    uint32_t epoch;
    uint32_t num_workers;  // divisor of averages
    bool may_be_lost;      // as Position::may_be_lost
  };
  using Verdict = protocol::Aggregator::Verdict;

  virtual ~Collector() { stop_timers(); }

  // Index of the child that contributes for `rank`; -1: none.
  virtual int32_t child_of_rank(uint32_t rank) const = 0;
  // As Aggregator::admit; also kDataLoss if this service cannot contribute to the root in `head`.
  virtual Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                                uint64_t payload_bytes) const = 0;
  // The payload is complete or discarded. The rest as Aggregator's methods on_contribution,
  // on_failed_contribution, on_child_gone and fail_tensor.
  virtual void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) = 0;
  virtual void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) = 0;
  virtual void child_gone(uint32_t child, const Status& why) = 0;
  // As Aggregator::on_child_lingers.
  virtual void child_lingers(uint32_t child, const Status& why) { child_gone(child, why); }
  // As Aggregator::restart_waits.
  virtual void restart_waits() = 0;
  virtual void fail_tensor(uint64_t number, uint64_t last_round, const Status& why) = 0;
  // After the loss of a root (protocol/takeover.h): `head.rank` says that it has an outcome;
  // whether the outcome was fetched from it; it has come: the values, or why the round has failed.
  // A kHolds has `holds_bytes()` of payload.
  virtual size_t holds_bytes() const { return 0; }
  virtual void on_holds(const protocol::DataHead& /*head*/, Bytes /*payload*/, Child& /*from*/) {}
  // It had the outcome, and has released it.
  virtual void on_released(const protocol::DataHead& /*head*/, Child& /*from*/) {}
  virtual bool expects_held(const protocol::DataHead& /*head*/) const { return false; }
  virtual void on_held(const protocol::DataHead& /*head*/, Result<BufferPool::Buffer> /*values*/) {}
  // The child has said all of its kHolds after so many losses of servers.
  virtual void on_stated(uint32_t /*child*/, uint64_t /*losses*/) {}
  // All ranks have forgotten the tensor: nobody contributes to these keys any more, and nobody
  // waits for an answer.
  virtual void forget(const protocol::ForgottenKeys& keys) = 0;
  // The job has failed: answers all contributions with `why`. Leased memory is not used any more.
  virtual void fail(const Status& why) = 0;

  // The connection ends, and its leases with it. Its waiting contributions are copied: they still
  // count.
  virtual void forget(const Child& connection);
  // All memory of the child is leased (Receiver::on_starving). If none of its contributions is
  // answered within a few milliseconds, those that wait are copied, and their leases returned. Does
  // not block.
  void reclaim(Child& connection);
  void stop_timers();

 protected:
  using Slots = std::vector<Contribution>;  // indexed by child

  explicit Collector(Environment environment)
      : environment_(environment),
        tick_(environment.loop, [this] { return next_tick_us(); }, [this] { on_tick(); }) {}

  virtual TimeUs next_tick_us() const = 0;
  virtual void on_tick() = 0;

  // Call after changes that may have made next_tick_us() earlier.
  void schedule_tick() { tick_.update(); }
  // Answers the contribution, if any, and empties the slot. The result must already be in its reply
  // space; without one it is the first head.bytes bytes of `result`, which must not change until it
  // is sent. An empty `result`: all contributions have reply spaces.
  void answer_result(const protocol::DataHead& head, Contribution& slot,
                     const std::shared_ptr<const BufferPool::Buffer>& result);
  // The same with a failure.
  void answer_failure(const protocol::DataHead& head, Contribution& slot, const Status& why);
  // A contribution that must not come before the answer to the child's last one.
  static Status too_early(const protocol::DataHead& head);
  // The connection of `head.rank`, which has said kHolds; fetch() asks on it. A rank whose connection
  // is closed may come again, or is lost, and the job with it.
  void add_holder(const protocol::DataHead& head, Child& from) { holders_[head.rank] = &from; }
  void fetch(const protocol::Fetch& fetch);
  // Returns whether the connection was a holder's.
  bool forget_holder(const Child& connection);
  // Reduces `sources` into the first of `spaces` and copies the result to the others, in one pass.
  // Each has `bytes` bytes. A space may be one of the sources.
  void reduce(const kernels::Reduction& reduction, std::vector<const void*> sources,
              std::span<std::byte* const> spaces, size_t bytes) const;

  Environment environment_;
  // Contributions without an answer. A key's slots exist from its first contribution until it is
  // forgotten; until then references to them stay valid.
  std::unordered_map<protocol::Key, Slots, protocol::KeyHash> slots_;

 private:
  // Calls `f` for the slots of one child of all keys, including empty slots.
  template <typename F>
  void for_each_slot_of(uint32_t child, F&& f);
  // Copies leased data, so that the lease is no longer needed.
  void own(Contribution& contribution);
  void forget_starving(const Child& child);
  void reclaim_at(TimeUs at_us);
  void reclaim_due();
  void return_leases(Child& child);

  struct Starving {
    Child* child;
    TimeUs reclaim_at_us;
  };
  std::map<uint32_t, Child*> holders_;  // by rank
  std::vector<Starving> starving_;      // in the order of time
  transport::LazyTimer tick_;
  transport::EventLoop::TimerId reclaim_timer_ = 0;
};

// A collector whose decisions a class of protocol/ makes: an Aggregator or a StalenessTracker.
template <typename Decisions>
class CollectorBy : public Collector {
 public:
  CollectorBy(Environment environment, protocol::Children children, protocol::WaitLimits limits)
      : Collector(environment), decisions_(std::move(children), limits) {}

  int32_t child_of_rank(uint32_t rank) const override { return decisions_.child_of_rank(rank); }
  void child_gone(uint32_t child, const Status& why) override {
    decisions_.on_child_gone(child, why, actions_);
    apply();
  }
  // The tick that is due before finds nothing.
  void restart_waits() override { decisions_.restart_waits(environment_.loop.now_us()); }
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why) override {
    decisions_.fail_tensor(number, last_round, why, actions_);
    apply();
  }
  void fail(const Status& why) override {
    decisions_.fail_all(why, actions_);
    apply();
  }

 protected:
  // Creates the slots of all children. Precondition: child < num_children().
  Contribution& slot(const protocol::Key& key, uint32_t child) {
    Slots& slots = slots_[key];
    slots.resize(decisions_.num_children());
    return slots[child];
  }
  // Carries out `actions_`, and empties it.
  virtual void apply() = 0;

  TimeUs next_tick_us() const override { return decisions_.next_tick_us(); }

  Decisions decisions_;
  typename Decisions::Actions actions_;  // empty between calls

 private:
  void on_tick() override {
    decisions_.on_tick(environment_.loop.now_us(), actions_);
    apply();
  }
};

}  // namespace byteps::summation
