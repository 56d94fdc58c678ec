// A child's connection to one shard, as worker/link is: the same protocol classes in the same order of events.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/outbox.h"
#include "protocol/push_pull_table.h"
#include "sim/priority_watch.h"
#include "sim/world.h"

namespace byteps::sim {

struct OutgoingPartition {
  uint64_t handle = 0;
  protocol::DataHead head;
  View input;  // empty from a broadcast's non-root
  View output;
  Status failure = {};  // not ok: this child cannot contribute
};

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) = 0;
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
};

struct LinkOptions {
  uint32_t rank = 0;
  uint32_t epoch = 0;
  protocol::Level level = protocol::Level::kCluster;
  uint32_t service = 0;
  std::string service_text;
  TimeUs silence_us = kNever;
};

class SimLink final : public Receiver {
 public:
  using Connector = UniqueFunction<void(ConnectCallback)>;

  SimLink(World& world, VirtualProcess& process, LinkOptions options, Connector connector,
          protocol::Outbox& outbox, LinkEvents& events);

  void enqueue(std::vector<OutgoingPartition> partitions);
  void peer_left();
  void fail(const Status& why);
  // Calls `done` when everything is settled and the connection closed.
  void leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done);

  void on_head(Endpoint& endpoint, const Frame& frame) override;
  void on_frame(Endpoint& endpoint, const Frame& frame) override;
  void on_closed(Endpoint& endpoint, const Status& why) override;

 private:
  struct Unanswered {
    uint64_t handle;
    uint64_t round;
    View output;
    uint64_t credit_bytes;
  };

  void connect();
  void on_connected(Result<Endpoint*> endpoint);
  protocol::DataHead head_of_type(protocol::DataType type) const;
  void offer(std::vector<OutgoingPartition> partitions);
  void hand_over(uint64_t ticket);
  void send(const OutgoingPartition& partition, uint64_t ticket);
  void send_failure(const OutgoingPartition& partition, uint64_t ticket);
  void send_again_later(const protocol::DataHead& head, const View& input);
  Unanswered* find(const protocol::DataHead& head);
  void deliver_lent(const Frame& frame, const View& output);
  void complete_answered(const protocol::DataHead& head, const Result<protocol::Plan>& outcome);
  void close_port();
  void complete_all(const Status& why);

  World& world_;
  VirtualProcess& process_;
  LinkOptions options_;
  Connector connector_;
  LinkEvents& events_;
  Endpoint* endpoint_ = nullptr;
  bool connecting_ = false;
  bool lost_ = false;
  Status ended_;
  protocol::Outbox& outbox_;
  std::optional<protocol::Outbox::Port> port_;     // once connected
  std::vector<OutgoingPartition> early_;           // came before the connection
  std::map<uint64_t, OutgoingPartition> offered_;  // wait in the outbox, by ticket
  std::optional<PriorityWatch> watch_;
  std::map<protocol::Key, Unanswered> unanswered_;
  UniqueFunction<void()> leave_done_;
};

// A view of bytes of its own, such as a text or a copy.
View make_view(World& world, const VirtualProcess& process, Bytes bytes);
// Of the bytes as they are now.
uint64_t digest_of(const View& view);
Frame make_frame(const protocol::DataHead& head, View payload = {}, View reply_space = {});

}  // namespace byteps::sim
