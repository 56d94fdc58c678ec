// A child's link to one shard of a summation service: sends partitions by priority within the
// credit (protocol/outbox.h), and receives results directly into their destination. The child is a
// worker, or the service of a machine that sends its sums to the root.
//
// All methods and callbacks run on the loop's thread. The link connects at its first partition. If
// the connection breaks, its partitions stay incomplete until the fate of the peer is known:
// fail(), peer_left(), or fail_over() if the job goes on without it (protocol/membership.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "protocol/outbox.h"
#include "protocol/pacing.h"
#include "protocol/push_pull_table.h"
#include "transport/transport.h"
#include "worker/held_results.h"

namespace byteps::worker {

struct StagedPartition;  // worker/device_staging.h

// A part of a tensor's result has arrived, and nobody writes to it any more; before the push_pull is
// done. Called on loops of links, for different parts at the same time. Must not block.
using OnPart = std::function<void(MutableBytes part)>;

// A partition to send. `input` and `output` must stay valid until LinkEvents::on_completed.
struct OutgoingPartition {
  uint64_t handle = 0;
  protocol::DataHead head;
  Bytes input;  // empty if only the root's values count
  MutableBytes output;
  // Hints for the transport (transport::Payload), the first also for the output.
  bool is_cold = false;
  bool is_answered_soon = false;
  // Not ok: tells the service that this child cannot contribute. No answer and no on_completed.
  Status failure;
  // If the tensor is in the memory of a device: what `input` and `output` are copies of.
  std::shared_ptr<StagedPartition> staged = nullptr;
  const OnPart* on_part = nullptr;  // of the tensor, valid until LinkEvents::on_completed returns
};

class Link;

// Callbacks of links, on the thread of the link's loop.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // The partition was answered (`outcome`: plan of the answer) or has failed. Its memory is no
  // longer used.
  virtual void on_completed(OutgoingPartition partition, const Result<protocol::Plan>& outcome) = 0;
  // The connection broke or could not be established. `service`: node number.
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
  // The service is lost, and the job goes on (fail_over()): these partitions go to the successors
  // of their roots, which have to know first of which rounds this node has outcomes: those of this
  // link, and those of other links to services that are lost.
  virtual void on_outcomes_moved(std::vector<protocol::DataHead> outcomes) = 0;
  virtual void on_partitions_moved(std::vector<OutgoingPartition> partitions) = 0;
};

struct LinkOptions {
  uint32_t rank = 0;  // of this worker
  uint32_t epoch = 0;
  protocol::Level level = protocol::Level::kCluster;
  uint32_t service = 0;      // node number of the service
  std::string service_text;  // description of the service for messages
  uint64_t bytes_per_s = 0;  // sending rate (protocol/pacing.h); 0: no limit
  // Contributions take turns with the answers to this shard of the same node (protocol/outbox.h).
  std::optional<protocol::Outbox::Peer> takes_turns = std::nullopt;
  TimeUs silence_us = kNever;  // for Connection::limit_silence
  // Null: nothing can be lost but the whole job.
  HeldResults* held = nullptr;
  bool may_be_lost = false;  // the service may be lost: its outcomes are held
};

class Link final : public transport::Receiver {
 public:
  // Establishes the connection, on the link's loop.
  using Connector = UniqueFunction<void(transport::ConnectCallback)>;

  // `outbox`: that of the link's loop.
  Link(LinkOptions options, Connector connector, protocol::Outbox& outbox, Metrics& metrics,
       LinkEvents& events);

  void enqueue(std::vector<OutgoingPartition> partitions);
  // Fails partitions that are not to be sent.
  void refuse(std::vector<OutgoingPartition> partitions, const Status& why);
  // Tells the service of which rounds this node has had an outcome from a root that is lost (kHolds
  // or kReleased).
  void say_holds(const std::vector<protocol::DataHead>& outcomes);
  // Tells the service that this was done for all after so many losses of servers (kStated).
  void say_stated(uint64_t losses);
  // Changes LinkOptions::bytes_per_s.
  void pace(uint64_t bytes_per_s);
  // Nullopt: not connected, or unknown (transport::Connection::sent_traffic).
  std::optional<transport::SentTraffic> sent_traffic();
  uint32_t service() const { return options_.service; }
  // The peer has left the job in order. Partitions without an answer fail: immediately if there is
  // no connection, otherwise when it closes, because answers may still arrive.
  void peer_left();
  // The service is lost, and the job goes on: closes the connection, and passes outcomes and then
  // partitions to LinkEvents, also partitions that are enqueued later.
  void fail_over();
  // The job has failed: closes the connection. All partitions, present and future, fail with `why`.
  void fail(const Status& why);
  // This worker leaves in order: sends a goodbye and closes the connection, at the latest when
  // `grace_period` has expired. Partitions without an answer fail with `why`; then calls `done`.
  void leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done);

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  struct Unanswered {
    OutgoingPartition outgoing;
    HeldResults::Values landing;  // where the result arrives if it is held
    HeldResults::Rounds rounds;   // of a stored tensor: what the result contains
  };

  void connect();
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection);
  void offer(std::vector<OutgoingPartition> partitions);
  void send_offered(uint64_t ticket);
  void send(OutgoingPartition partition);
  void send_failure(const OutgoingPartition& outgoing);
  void send_held(const protocol::DataHead& head);
  Result<transport::ReceiveBuffer> place_included(Unanswered& waiting, size_t payload_bytes);
  Status on_result(const protocol::DataHead& head, Bytes payload);
  Status on_mark(const protocol::DataHead& head);
  void lose(const Status& why);
  void complete(OutgoingPartition outgoing, const Status& why);
  void complete_all(const Status& why);
  // The unanswered partition that `head` answers; kDataLoss if there is none.
  Result<Unanswered*> find(const protocol::DataHead& head);
  Status complete_answered(const protocol::DataHead& head, const Result<protocol::Plan>& outcome);

  LinkOptions options_;
  Connector connector_;
  Metrics& metrics_;
  LinkEvents& events_;
  bool connecting_ = false;
  bool lost_ = false;
  bool moved_ = false;   // after fail_over()
  uint64_t stated_ = 0;  // by say_stated()
  // The last mark of the service, and the number of outcomes held at that mark and at the one before.
  struct Mark {
    uint64_t number = 0;
    uint64_t order = 0;
    uint64_t order_before = 0;
  };
  Mark mark_;
  Status ended_;  // not ok: nothing is sent any more, and all partitions fail with it
  protocol::Outbox& outbox_;
  protocol::Pacer pacer_;
  std::optional<protocol::Outbox::Port> port_;               // set once connected
  std::vector<OutgoingPartition> early_;                     // enqueued before that
  std::vector<protocol::DataHead> early_holds_;              // to be said before that
  std::unordered_map<uint64_t, OutgoingPartition> offered_;  // waiting in the outbox; key: ticket
  uint64_t last_ticket_ = 0;
  std::unordered_map<protocol::Key, Unanswered, protocol::KeyHash> unanswered_;
  std::string failure_text_;  // receive buffer for the text of a kFailed
  UniqueFunction<void()> leave_done_;
  std::unique_ptr<transport::Connection> connection_;  // destroyed before what its callbacks use
};

}  // namespace byteps::worker
