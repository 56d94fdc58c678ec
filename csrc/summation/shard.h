// One shard of a summation service: an event loop's thread that owns some keys, and the children's connections that
// bring contributions to them. The work is done by its collectors (collector.h): two tiers, the machine's, for the
// ranks of this very machine, and the cluster's, for the machines; and a store, for what is kept.
//
// All methods run on the loop's thread but for the constructor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/metrics.h"
#include "protocol/outbox.h"
#include "protocol/tree.h"
#include "summation/parameter_store.h"
#include "summation/reduction_level.h"
#include "transport/transport.h"

namespace byteps::summation {

// What a shard tells its process.
class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  // A rank's connection broke without a goodbye. On the shard's loop.
  virtual void on_child_lost(uint32_t rank, const Status& why) = 0;
  // To be logged with the tensor's name. On the shard's loop.
  virtual void on_stalled(const protocol::Stalled& stalled) = 0;
};

// Where a service stands in the job.
struct Position {
  uint32_t epoch = 0;
  uint32_t num_workers = 0;
  std::vector<std::string> describe_rank;
  protocol::Children machines;  // below every service
  protocol::Children ranks;     // of this machine; empty: this service is nothing but a root
  std::vector<uint64_t>
      bytes_per_s;  // to each rank that speaks for its machine (protocol/pacing); 0: not held back
  // Of the machine's tier, as of ReductionLevel.
  ParentLink* parent_link = nullptr;
  uint32_t num_final_roots = 0;
  protocol::WaitLimits limits;
  TimeUs silence_us = kNever;  // of the children's connections (Connection::limit_silence)
};

class Shard {
 public:
  // `outbox`: of the loop.
  Shard(transport::EventLoop& loop, protocol::Outbox& outbox, Metrics& metrics, ShardEvents& events);
  ~Shard();  // on the loop, or after it has stopped

  // A connection of this service's listener, or the local worker's. Kept unread until start(); closed at once when
  // this service leaves already.
  void adopt(std::unique_ptr<transport::Connection> connection);
  // The roster is known. Once.
  void start(const Position& position);

  // The tensor was declared with contradictory sizes or dtypes: its rounds fail, now and later.
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why);
  // The rank has left the job in order.
  void rank_left(uint32_t rank);
  // The job has failed: forgets all contributions (no lent memory is touched from here on) and answers them.
  void fail(const Status& why);
  // Says goodbye to all children (unless the job has failed) once their answers are written, then calls `done`, or when
  // `grace_period` is over for all that are left.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  transport::EventLoop& loop() { return loop_; }

 private:
  friend class Child;

  // Null: this service has no such level.
  Collector* collector(protocol::Level level);
  bool has_child(const protocol::DataHead& hello) const;
  void on_goodbye(Child& child);
  void on_closed(Child& child, const Status& why);
  void forget(const Child& child);
  void remove(Child& child);
  void finish_leaving_if_empty();
  template <typename F>
  void for_each_collector(F&& f);

  transport::EventLoop& loop_;
  protocol::Outbox& outbox_;
  Metrics& metrics_;
  ShardEvents& events_;
  BufferPool pool_;  // outlives the connections, whose unsent frames hold its buffers
  uint32_t epoch_ = 0;
  std::vector<std::string> describe_rank_;
  std::vector<uint64_t> bytes_per_s_;
  TimeUs silence_us_ = kNever;
  std::unique_ptr<ReductionLevel> machine_;
  std::unique_ptr<ReductionLevel> cluster_;  // null until start(), as is the store
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::unique_ptr<Child>> children_;  // one per connection
  bool failed_ = false;
  bool leaving_ = false;
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::summation
