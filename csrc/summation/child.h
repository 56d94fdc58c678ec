// A shard's end of one worker's connection: reads its frames into place and hands them to the shard.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/buffer_pool.h"
#include "protocol/aggregation.h"
#include "summation/shard.h"
#include "transport/transport.h"

namespace byteps::summation {

class Child final : public transport::Receiver {
 public:
  Child(Shard& shard, std::unique_ptr<transport::Connection> connection);

  void start() { connection_->start(this); }
  // Of the worker; -1 until its hello.
  int rank() const { return rank_; }
  bool has_left() const { return left_; }

  // An answer, which gives `loan` back; `keep` owns the payload's memory until it is written.
  void send(const protocol::DataHead& head, Bytes payload, transport::Loan loan,
            std::shared_ptr<const BufferPool::Buffer> keep);
  // A kFailed with the status' code and text; gives `loan` back.
  void send_failure(const protocol::DataHead& request, const Status& why, transport::Loan loan);
  void give_back(transport::Loan loan);
  // Since when it has waited for a loan; kNever if it does not.
  TimeUs starving_since_us() const { return starving_since_us_; }
  // It says so again if it still has to wait after a loan was given back.
  void stop_starving() { starving_since_us_ = kNever; }
  void say_goodbye();
  void close_when_sent(TimeUs deadline_us) { connection_->close_when_sent(deadline_us); }

  Result<transport::Landing> on_head(transport::Connection& connection,
                                     const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;
  void on_starving(transport::Connection& connection) override;

 private:
  Status on_hello(const protocol::DataHead& head);
  Status on_push_pull(const protocol::DataHead& head, const transport::Arrival& arrival, Bytes payload);

  Shard& shard_;
  std::unique_ptr<transport::Connection> connection_;
  int rank_ = -1;
  bool left_ = false;
  TimeUs starving_since_us_ = kNever;
  // Between on_head and on_frame of one frame.
  std::optional<protocol::Aggregator::Verdict> verdict_;
  BufferPool::Buffer landing_;
};

}  // namespace byteps::summation
