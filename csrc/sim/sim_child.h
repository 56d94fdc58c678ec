// A shard's end of one child's connection, as summation/child is: answers wait in an outbox, urgent ones go first.
#pragma once

#include <optional>

#include "protocol/outbox.h"
#include "sim/priority_watch.h"
#include "sim/sim_collector.h"
#include "sim/world.h"

namespace byteps::sim {

class SimShard;

class SimChild final : public Receiver {
 public:
  SimChild(World& world, VirtualProcess& process, SimShard& shard, protocol::Outbox& outbox,
           Endpoint& endpoint)
      : world_(world),
        process_(process),
        shard_(shard),
        port_(outbox),
        watch_(world, process, "a child", outbox),
        endpoint_(endpoint) {}

  void start(TimeUs silence_us) {
    endpoint_.limit_silence(silence_us);
    endpoint_.start(this);
  }
  int rank() const { return rank_; }
  bool has_left() const { return left_; }
  bool closed() const { return closed_; }
  bool is(const protocol::DataHead& hello) const;

  void send(const protocol::DataHead& head, const View& payload, LeaseId lease);
  void send_failure(const protocol::DataHead& request, const Status& why, LeaseId lease);
  void return_lease(LeaseId lease) { endpoint_.return_lease(lease); }
  // Sends what is left, a goodbye of `epoch` after it if there is one, and closes.
  void leave(std::optional<uint32_t> epoch, GracePeriod grace_period);
  // Now, and without a word.
  void drop();

  void on_head(Endpoint& endpoint, const Frame& frame) override;
  void on_frame(Endpoint& endpoint, const Frame& frame) override;
  void on_closed(Endpoint& endpoint, const Status& why) override;
  void on_starving(Endpoint& endpoint) override;

 private:
  void on_hello(const protocol::DataHead& head);
  void on_push_pull(const protocol::DataHead& head, const Frame& frame);
  void on_failed(const protocol::DataHead& head, const Frame& frame);
  protocol::Aggregator::Verdict admit(const protocol::DataHead& head, size_t payload_bytes);
  protocol::Aggregator::Verdict take_verdict(const protocol::DataHead& head);

  World& world_;
  VirtualProcess& process_;
  SimShard& shard_;
  protocol::Outbox::Port port_;
  PriorityWatch watch_;
  Endpoint& endpoint_;
  int rank_ = -1;
  protocol::Level level_ = protocol::Level::kCluster;
  uint16_t lane_ = 0;
  SimCollector* collector_ = nullptr;
  uint32_t child_ = 0;
  bool left_ = false;
  bool closed_ = false;
  std::optional<protocol::Aggregator::Verdict> verdict_;  // between head and frame
};

}  // namespace byteps::sim
