// The helper's end of a probe's connection (protocol/nic_probe): each frame is thrown away and answered by one of the
// same size. On the connection's loop.
#pragma once

#include <memory>

#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// What probes carry: zeros, `bytes` of them, at most protocol::kMaxProbeFrameBytes.
Bytes probe_payload(size_t bytes);

class ProbeEcho final : public transport::Receiver {
 public:
  // Answers frames of this epoch; others close the connection. `closed` is called when the other end has closed; this
  // object may be destroyed only after that call.
  ProbeEcho(std::unique_ptr<transport::Connection> connection, uint32_t epoch,
            UniqueFunction<void(const ProbeEcho&)> closed);

  void start() { connection_->start(this); }

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  const uint32_t epoch_;
  UniqueFunction<void(const ProbeEcho&)> closed_;
  const std::shared_ptr<uint64_t> unsent_bytes_ = std::make_shared<uint64_t>(0);  // of answers
  std::unique_ptr<transport::Connection> connection_;  // after what its callbacks use
};

// Ok if this is a frame of a probe of this epoch, with the payload that its head says.
Status check_probe(const transport::Arrival& arrival, uint32_t epoch);

}  // namespace byteps::node
