// One shard of a summation service: some keys, the connections of the children that contribute to
// them, and its collectors: a reduction level for the ranks of this machine, one for all machines,
// and a parameter store. All methods except the constructor run on the loop's thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/metrics.h"
#include "protocol/answer_marks.h"
#include "protocol/outbox.h"
#include "protocol/tree.h"
#include "summation/parameter_store.h"
#include "summation/reduction_level.h"
#include "transport/lazy_timer.h"
#include "transport/transport.h"

namespace byteps::summation {

// Callbacks of a shard into its process, on the shard's loop.
class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  // The connection of `rank` broke without a goodbye.
  virtual void on_child_lost(uint32_t rank, const Status& why) = 0;
  // Contributions have waited long: log a warning with the name of the tensor.
  virtual void on_stalled(const protocol::Stalled& stalled) = 0;
};

// The job as a service sees it, and the service's place in the tree.
struct Position {
  uint32_t epoch = 0;
  uint32_t num_workers = 0;
  std::vector<std::string> describe_rank;
  protocol::Children machines;  // children at the cluster level, the same for all services
  protocol::Children ranks;     // ranks of this machine; empty: no level of the machine here
  // Sending rate (protocol/pacing.h) to each rank that contributes for its machine; 0: no limit.
  std::vector<uint64_t> bytes_per_s;
  // Whether answers to the rank take turns with contributions (protocol/outbox.h).
  std::vector<bool> takes_turns = {};
  // For the reduction level of the machine (summation/reduction_level.h).
  ParentLink* parent_link = nullptr;
  uint32_t num_final_roots = 0;
  protocol::WaitLimits limits;
  TimeUs silence_us = kNever;  // for Connection::limit_silence of the children
  // The job goes on if this service is lost, so ranks hold what it answers about stored tensors.
  bool may_be_lost = false;
  // Between two marks of answers (protocol/answer_marks.h) of a service that may be lost.
  TimeUs mark_us = kNever;
};

class Shard {
 public:
  // `index`: among the shards of the service. `outbox`: that of the loop. All other arguments must
  // outlive the shard.
  Shard(uint32_t index, transport::EventLoop& loop, protocol::Outbox& outbox, Metrics& metrics,
        ShardEvents& events);
  ~Shard();  // on the loop's thread, or after the loop has stopped

  // Adds a connection from a listener of this service, or from the worker of this process. It is
  // not read before start(), and closed at once if this service is leaving; it may go on with one
  // that the network has reset (transport/resume).
  void adopt(std::unique_ptr<transport::Connection> connection);
  // The roster is known. Call once.
  void start(const Position& position);

  // Changes Position::bytes_per_s.
  void pace(const std::vector<uint64_t>& bytes_per_s);
  // Adds what the children of the cluster level have been sent since they were connected.
  void add_sent_traffic(std::vector<protocol::Flow>& flows);
  // As Aggregator::fail_tensor.
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why);
  // As Collector::forget, for keys of this and of other shards.
  void forget(const std::vector<protocol::ForgottenKeys>& keys);
  // Adds the numbers of the names that it has summed and not forgotten.
  void add_summed_tensors(std::set<uint64_t>& numbers) const;
  // The rank has left the job in order, or lingers: it only tells of outcomes any more.
  void rank_left(uint32_t rank, bool lingers);
  // As Aggregator::restart_waits.
  void restart_waits();
  // The job has failed: answers all contributions with `why`. Leased memory is not used any more.
  void fail(const Status& why);
  // The job has failed for this node, perhaps not for others: closes all connections without
  // answers.
  void abandon(const Status& why);
  // Sends all answers, then a goodbye unless the job has failed. Calls `done` when all connections
  // are closed, or their grace periods have expired.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  transport::EventLoop& loop() { return loop_; }

 private:
  friend class Child;

  // Null if this service does not have the level, or before start().
  Collector* collector(protocol::Level level);
  bool has_child(const protocol::DataHead& hello) const;
  // A child of the cluster level is sent an answer; has confirmed a mark.
  void on_answer();
  void on_confirmed(Child& child, uint64_t mark);
  void send_marks();
  void send_stable();
  void on_goodbye(Child& child);
  void on_closed(Child& child, const Status& why);
  void forget(const Child& child);
  void remove(Child& child);
  void drop_children();  // all connections
  void finish_leaving_if_empty();
  template <typename F>
  void for_each_collector(F&& f);

  const uint32_t index_;
  transport::EventLoop& loop_;
  protocol::Outbox& outbox_;
  Metrics& metrics_;
  ShardEvents& events_;
  BufferPool pool_;    // outlives the connections, whose unsent frames use its buffers
  Position position_;  // as given to start(), without `machines` and `ranks`, which the levels own
  // Null before start(); machine_ also if this service has no level of the machine.
  std::unique_ptr<ReductionLevel> machine_;
  std::unique_ptr<ReductionLevel> cluster_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::unique_ptr<Child>> children_;  // one for each connection
  std::optional<protocol::AnswerMarks> marks_;    // set by start() if the service may be lost
  transport::LazyTimer mark_timer_;
  bool failed_ = false;
  bool leaving_ = false;
  std::optional<GracePeriod> grace_period_;  // of leave()
  UniqueFunction<void()> leave_done_;
};

}  // namespace byteps::summation
