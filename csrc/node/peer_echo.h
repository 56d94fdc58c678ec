// One connection at the listening end of a check (peer_check.h): echoes frames.
#pragma once

#include <memory>
#include <string>

#include "base/buffer_pool.h"
#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// Used on the thread of the connection's loop.
class PeerEcho final : public transport::Receiver {
 public:
  // `facts`: the answer to kPeerAsk. `closed` is called when the other end has closed; this object
  // must not be destroyed before that call.
  PeerEcho(std::unique_ptr<transport::Connection> connection, std::string facts,
           UniqueFunction<void(const PeerEcho&)> closed);

  void start() { connection_->start(this); }
  // "rdma 10.0.0.2:9000 (mlx5_0 port 1, ...)"
  const std::string& peer() const { return connection_->peer(); }
  uint64_t frames() const { return frames_; }  // number of frames echoed

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  // Memory of answers that are not sent yet; it may outlive this object.
  struct Answers {
    BufferPool pool;
    size_t unsent_bytes = 0;
  };

  const std::string facts_;
  UniqueFunction<void(const PeerEcho&)> closed_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  BufferPool::Buffer arriving_;
  uint64_t frames_ = 0;
  std::unique_ptr<transport::Connection> connection_;  // last: its callbacks use the others
};

}  // namespace byteps::node
