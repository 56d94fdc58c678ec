// A shard's end of the connection of one child: receives its contributions, passes them to the
// collector of their level, and sends the answers, urgent ones first. Lives on the shard's loop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "protocol/outbox.h"
#include "protocol/pacing.h"
#include "summation/collector.h"
#include "summation/shard.h"

namespace byteps::summation {

class Child final : public transport::Receiver {
 public:
  Child(Shard& shard, std::unique_ptr<transport::Connection> connection);

  void start();
  // Rank of the connected worker; -1 before its hello.
  int rank() const { return rank_; }
  // Whether the hello of this connection had the same rank and level.
  bool is(const protocol::DataHead& hello) const;
  bool has_left() const { return left_; }
  // Its hello has come, and it has the level of the cluster.
  bool is_paced() const { return rank_ >= 0 && level_ == protocol::Level::kCluster; }
  // Changes Position::bytes_per_s of this child.
  void pace(uint64_t bytes_per_s);
  // Nullopt: not paced, or unknown (transport::Connection::sent_traffic).
  std::optional<transport::SentTraffic> sent_traffic();
  // The collector that gets the contributions (null before the hello), and the index of this child
  // there.
  Collector* collector() const { return collector_; }
  uint32_t number() const { return child_; }

  // Sends an answer. `keep` owns the payload's memory until it is sent; null if that memory is
  // leased.
  void send(const protocol::DataHead& head, const transport::Payload& payload,
            std::shared_ptr<const BufferPool::Buffer> keep);
  // Answers `request` with a kFailed that has the code and message of `why`, and returns `lease`.
  void send_failure(const protocol::DataHead& request, const Status& why, transport::LeaseId lease);
  // Sends a kMark, behind all answers so far; a kStable, if it was sent that mark.
  void send_mark(uint64_t number);
  void send_stable(uint64_t number);
  void return_lease(transport::LeaseId lease);
  // Sends all answers, then a goodbye if `in_order`, and closes (Connection::close_when_sent).
  void leave(bool in_order, GracePeriod grace_period);

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;
  void on_starving(transport::Connection& connection) override;

 private:
  struct Answer {
    protocol::DataHeadBytes head;
    transport::Payload payload;  // `keep` owns its memory unless leased
  };

  void send_of_mark(protocol::DataType type, uint64_t number);
  void enqueue(const protocol::DataHead& head, Answer answer);
  void send_now(const Answer& answer, UniqueFunction<void(const Status&)> on_sent);
  Status on_hello(const protocol::DataHead& head);
  Status on_push_pull(const protocol::DataHead& head, const transport::Arrival& arrival, Bytes payload);
  Status on_failed(const protocol::DataHead& head, const transport::Arrival& arrival);
  Result<transport::ReceiveBuffer> place_text(const transport::Arrival& arrival);
  Result<transport::ReceiveBuffer> place_holds(const transport::Arrival& arrival);
  Result<transport::ReceiveBuffer> place_held(const protocol::DataHead& head,
                                              const transport::Arrival& arrival);
  Status on_outcome(const protocol::DataHead& head, const transport::Arrival& arrival);
  Result<protocol::Aggregator::Verdict> admit(const protocol::DataHead& head, size_t payload_bytes) const;

  Shard& shard_;
  protocol::Outbox::Port port_;
  // Expires with this object: the connection reports sent frames in posted tasks, which may run
  // later.
  const std::shared_ptr<std::monostate> alive_ = std::make_shared<std::monostate>();
  std::unique_ptr<transport::Connection> connection_;  // destroyed before what its callbacks use
  // From the hello:
  int rank_ = -1;
  protocol::Level level_ = protocol::Level::kCluster;
  Collector* collector_ = nullptr;
  protocol::Pacer pacer_{0};
  uint32_t child_ = 0;  // index among the children of collector_

  bool left_ = false;
  uint64_t last_mark_ = 0;
  // Used from on_head to on_frame of a frame.
  BufferPool::Buffer receive_buffer_;
  std::string failure_text_;
};

}  // namespace byteps::summation
