// The answering end of a check by another machine's doctor: one connection.
#pragma once

#include <memory>
#include <string>

#include "base/buffer_pool.h"
#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// On the connection's loop.
class PeerEcho final : public transport::Receiver {
 public:
  // `facts`: the answer to who asks. `closed` is called when the other end has closed; this object may be destroyed only
  // after that call.
  PeerEcho(std::unique_ptr<transport::Connection> connection, std::string facts,
           UniqueFunction<void(const PeerEcho&)> closed);

  void start() { connection_->start(this); }
  // "rdma 10.0.0.2:9000 (mlx5_0 port 1, ...)"
  const std::string& peer() const { return connection_->peer(); }
  uint64_t frames() const { return frames_; }  // that were echoed

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  // What answers need that are not sent yet, even if this object is gone by then.
  struct Answers {
    BufferPool pool;
    size_t unsent_bytes = 0;
  };

  const std::string facts_;
  UniqueFunction<void(const PeerEcho&)> closed_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  BufferPool::Buffer arriving_;
  uint64_t frames_ = 0;
  std::unique_ptr<transport::Connection> connection_;  // after what its callbacks use
};

}  // namespace byteps::node
