// A process's summation service: its shards, one on each of its event loops, and where they listen.
//
// All methods may be called from any thread but the loops'; they post to the shards in the order of calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "summation/shard.h"

namespace byteps::summation {

class Service {
 public:
  struct Place {
    transport::EventLoop* loop;
    protocol::Outbox* outbox;
  };
  // A shard for each of `places`, which outlive the service. The others as of Shard.
  Service(const std::vector<Place>& places, Metrics& metrics, ShardEvents& events);
  ~Service();  // closes all connections

  // Each shard at an address of its own that the kernel or the transport chooses: its addresses, in order, as
  // `address` is (port 0) but for the port or name. Accepted connections wait until start().
  Result<std::vector<std::string>> listen(transport::Transport& transport, const transport::Address& address);
  Shard& shard(size_t index) { return *shards_[index]; }
  size_t size() const { return shards_.size(); }

  // See Shard for all of these.
  void start(const Position& position);
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why);
  void rank_left(uint32_t rank);
  void fail(const Status& why);
  // Calls `done`, on a loop of a shard, when all shards have said goodbye and all children are gone, or the
  // grace period has expired. Then nobody can connect any more.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

 private:
  template <typename F>
  void post_each(F f);
  void stop_listening(UniqueFunction<void()> done);

  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::vector<std::unique_ptr<transport::Listener>>> listeners_;  // by shard
};

}  // namespace byteps::summation
