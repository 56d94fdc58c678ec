// A shard's end of one child's connection: reads its frames into place and hands them to the collector it speaks to;
// sends the answers, urgent ones first.
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
  // Of the worker that speaks; -1 until its hello.
  int rank() const { return rank_; }
  // Whether a hello of the same words has come on this connection.
  bool is(const protocol::DataHead& hello) const;
  bool has_left() const { return left_; }
  // Whom it speaks to, and as which of its children; null until its hello.
  Collector* collector() const { return collector_; }
  uint32_t number() const { return child_; }

  // An answer. `keep` owns the payload's memory until it is written; null: it is a lease's.
  void send(const protocol::DataHead& head, const transport::Payload& payload,
            std::shared_ptr<const BufferPool::Buffer> keep);
  // A kFailed with the status' code and text.
  void send_failure(const protocol::DataHead& request, const Status& why, transport::LeaseId lease);
  void return_lease(transport::LeaseId lease);
  // Sends what is left, a goodbye after it if `in_order`, and closes (Connection::close_when_sent).
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
    transport::Payload payload;
    std::shared_ptr<const void> keep;  // the payload's memory, if it is not a lease's
  };

  void enqueue(const protocol::DataHead& head, Answer answer);
  void hand_over(const Answer& answer, UniqueFunction<void(const Status&)> on_sent);
  Status on_hello(const protocol::DataHead& head);
  Status on_push_pull(const protocol::DataHead& head, const transport::Arrival& arrival, Bytes payload);
  Status on_failed(const protocol::DataHead& head, const transport::Arrival& arrival);
  Result<protocol::Aggregator::Verdict> admit(const protocol::DataHead& head, size_t payload_bytes) const;

  Shard& shard_;
  protocol::Outbox::Port port_;
  // Ends with this object: a connection reports what was sent in a task of its own, which may come later.
  const std::shared_ptr<std::monostate> alive_ = std::make_shared<std::monostate>();
  std::unique_ptr<transport::Connection> connection_;  // after what its callbacks use
  // Of the hello.
  int rank_ = -1;
  protocol::Level level_ = protocol::Level::kCluster;
  Collector* collector_ = nullptr;
  protocol::Pacer pacer_{0};
  uint32_t child_ = 0;  // its number there

  bool left_ = false;
  // Between on_head and on_frame of one frame.
  BufferPool::Buffer receive_buffer_;
  std::string failure_text_;
};

}  // namespace byteps::summation
