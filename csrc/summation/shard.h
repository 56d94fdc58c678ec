// One shard of a summation service: an event loop's thread that owns some keys, receives the children's
// contributions straight into place, sums a round when it is complete, and answers every child.
//
// What is decided (complete? repeated? refused?) is protocol/aggregation's; this carries it out. All methods run
// on the loop's thread but for the constructor. Children of the same machine (connections that lend) contribute by
// reference and get their result by reference; nothing of theirs is touched after their answer was sent.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/buffer_pool.h"
#include "base/metrics.h"
#include "protocol/aggregation.h"
#include "transport/transport.h"

namespace byteps::summation {

// What a shard tells its process.
class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  // A child's connection broke without a goodbye. On the shard's loop.
  virtual void on_child_lost(uint32_t child, const Status& why) = 0;
};

class Child;

class Shard {
 public:
  Shard(transport::EventLoop& loop, Metrics& metrics, ShardEvents& events);
  ~Shard();  // on the loop, or after it has stopped

  // A connection of this service's listener, or the local worker's. Kept unread until start().
  void adopt(std::unique_ptr<transport::Connection> connection);
  // The roster is known: `describe[child]` names each worker. Once.
  void start(std::vector<std::string> describe, uint32_t epoch, protocol::AggregationLimits limits);

  // The tensor was declared with contradictory sizes or dtypes: its rounds fail, now and later.
  void fail_tensor(uint32_t tensor, const Status& why);
  // The child has left the job in order.
  void child_left(uint32_t child);
  // The job has failed: forgets all contributions (no lent memory is touched from here on) and answers them.
  void fail(const Status& why);
  // Says goodbye to all children (unless the job has failed) once their answers are written, then calls `done` (at
  // `deadline_us` at the latest).
  void leave(TimeUs deadline_us, UniqueFunction<void()> done);

  transport::EventLoop& loop() { return loop_; }

 private:
  friend class Child;

  // A contribution that waits for its round.
  struct Contribution {
    BufferPool::Buffer buffer;  // empty: lent
    Bytes data;                 // in `buffer`, or what the child has lent; empty from a broadcast's non-root
    MutableBytes reply_space;   // of a lent one
    transport::Loan loan = transport::kNoLoan;
    Child* from = nullptr;  // null: none, or the child is gone
    bool present = false;
  };
  using Slots = std::vector<Contribution>;  // by child

  bool has_child(uint32_t rank) const;
  // From Child. The payload is complete; the contribution is accepted or refused by now.
  void contribute(Child& child, const protocol::DataHead& head, Contribution contribution);
  void on_goodbye(Child& child);
  void on_closed(Child& child, const Status& why);

  // Copies what the child has lent and gives it back: those answers will be sent, not put into its memory.
  void release_loans(Child& child);
  void release_loan(Contribution& contribution);
  void schedule_feeding(TimeUs starving_since_us);
  void feed_the_starving();
  void forget(Child& child);

  void carry_out(protocol::AggregationActions& actions);
  void carry_out(const protocol::Complete& complete);
  void carry_out(const protocol::Fail& fail);
  // Reduces `slots` into one buffer and into the reply spaces of those that lent.
  BufferPool::Buffer reduce(const protocol::DataHead& head, Slots& slots);
  void answer_all(const protocol::DataHead& head, Slots& slots, BufferPool::Buffer result);
  void schedule_tick();
  void remove(Child& child);
  void finish_leaving_if_empty();

  transport::EventLoop& loop_;
  Metrics& metrics_;
  ShardEvents& events_;
  BufferPool pool_;  // outlives the connections, whose unsent frames hold its buffers
  std::vector<std::string> describe_;
  uint32_t epoch_ = 0;
  std::unique_ptr<protocol::Aggregator> aggregator_;  // null until start()
  std::unordered_map<protocol::Key, Slots, protocol::KeyHash> slots_;
  std::vector<std::unique_ptr<Child>> children_;  // one per connection
  protocol::AggregationActions actions_;          // reused
  transport::EventLoop::TimerId tick_timer_ = 0;
  transport::EventLoop::TimerId feeding_timer_ = 0;
  bool failed_ = false;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::summation
