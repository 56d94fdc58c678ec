// The summation service of a process: one or more shards on each of its data loops, and their
// listeners.
//
// Methods may be called from any thread except those of the loops. They post to the shards in the
// order of the calls.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "summation/shard.h"

namespace byteps::summation {

class Service {
 public:
  struct ShardLoop {
    transport::EventLoop* loop;
    protocol::Outbox* outbox;
  };
  // Creates a shard for each of `loops`, which may contain equal ones. The loops, the outboxes,
  // `metrics` and `events` must outlive the service.
  Service(const std::vector<ShardLoop>& loops, Metrics& metrics, ShardEvents& events);
  ~Service();  // closes all connections

  // Every shard listens on its own address: `address` (port 0) with a port or name that the kernel
  // or the transport chooses. Returns these addresses, indexed by shard. Blocks on the loops.
  // Accepted connections are not read before start().
  Result<std::vector<std::string>> listen(transport::Transport& transport, const transport::Address& address);
  Shard& shard(size_t index) { return *shards_[index]; }
  size_t size() const { return shards_.size(); }

  // As Shard's methods, for all shards.
  void start(const Position& position);
  void pace(const std::vector<uint64_t>& bytes_per_s);
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why);
  void forget(std::vector<protocol::ForgottenKeys> keys);
  void rank_left(uint32_t rank, bool lingers);
  void restart_waits();
  // The numbers of the names that it has summed and not forgotten. After the loops have stopped.
  std::set<uint64_t> summed_tensors() const;
  void fail(const Status& why);
  void abandon(const Status& why);
  // Sends a goodbye to all children. Calls `done`, on the loop of a shard, when all connections are
  // closed, or the grace period has expired, and no shard listens any more.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

 private:
  template <typename F>
  void post_each(F f);
  void stop_listening(UniqueFunction<void()> done);

  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::vector<std::unique_ptr<transport::Listener>>> listeners_;  // indexed by shard
};

}  // namespace byteps::summation
