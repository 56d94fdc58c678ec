// A child's connection to one shard of one summation service: sends partitions by priority within the credit (protocol/outbox),
// receives results straight into place. The child is a worker, or a machine's service on its way to the root.
//
// All methods on the loop's thread. The connection is made at the first partition. When it breaks, its partitions
// stay unsettled until somebody who knows says what became of the peer (fail, peer_left): see protocol/membership.
#pragma once

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

namespace byteps::worker {

// One partition on its way; its memory is valid until settled.
struct OutgoingPartition {
  uint64_t handle = 0;  // whose it is, for LinkEvents::on_completed
  protocol::DataHead head;
  Bytes input;  // empty where only the root's values count
  MutableBytes output;
  Status failure;  // not ok: tells the service that this child cannot contribute; not answered, not settled
};

class Link;

// On the link's loop.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // The partition's memory is not used any more: it was answered, with this plan, or has failed.
  virtual void on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) = 0;
  // The connection broke or could not be made.
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
};

struct LinkOptions {
  uint32_t rank = 0;  // this worker
  uint32_t epoch = 0;
  protocol::Level level = protocol::Level::kCluster;
  uint32_t service = 0;        // node number of the service
  std::string service_text;    // how messages name it
  uint64_t bytes_per_s = 0;    // protocol/pacing; 0: not held back
  TimeUs silence_us = kNever;  // of the connection (Connection::limit_silence)
};

class Link final : public transport::Receiver {
 public:
  // Makes the connection; on the link's loop.
  using Connector = UniqueFunction<void(transport::ConnectCallback)>;

  // `outbox`: of the loop.
  Link(LinkOptions options, Connector connector, protocol::Outbox& outbox, Metrics& metrics,
       LinkEvents& events);

  void enqueue(std::vector<OutgoingPartition> partitions);
  // The peer has left the job in order. Without a connection everything settles now, else what the peer has not
  // answered when the connection ends.
  void peer_left();
  // The job has failed: closes at once, settles everything with `why`, and everything that comes later.
  void fail(const Status& why);
  // This worker leaves in order: what is not answered is settled with `why`; then calls `done`.
  void leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done);

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  struct Unanswered {
    uint64_t handle;
    uint64_t round;
    uint64_t bytes;
    MutableBytes output;
  };

  void connect();
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection);
  void offer(std::vector<OutgoingPartition> partitions);
  void hand_over(uint64_t ticket);
  void send(const OutgoingPartition& outgoing);
  void send_failure(const OutgoingPartition& outgoing);
  void lose(const Status& why);
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
  Status ended_;  // not ok: nothing is sent any more, everything settles with it
  protocol::Outbox& outbox_;
  protocol::Pacer pacer_;
  std::optional<protocol::Outbox::Port> port_;               // once connected
  std::vector<OutgoingPartition> early_;                     // came before the connection
  std::unordered_map<uint64_t, OutgoingPartition> offered_;  // wait in the outbox, by ticket
  uint64_t last_ticket_ = 0;
  std::unordered_map<protocol::Key, Unanswered, protocol::KeyHash> unanswered_;
  std::string failure_text_;  // where the text of a kFailed lands
  UniqueFunction<void()> leave_done_;
  std::unique_ptr<transport::Connection> connection_;  // after what its callbacks use
};

}  // namespace byteps::worker
