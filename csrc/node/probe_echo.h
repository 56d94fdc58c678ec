// The helper's end of a connection of a probe (protocol/nic_probe): discards each frame and answers
// it with one of the same size. Used on the thread of the connection's loop.
#pragma once

#include <memory>

#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// The payload of probes: `bytes` zeros, at most protocol::kMaxProbeFrameBytes. Valid forever.
Bytes probe_payload(size_t bytes);

class ProbeEcho final : public transport::Receiver {
 public:
  // Answers frames of this epoch; other frames close the connection. `closed` is called when the
  // other end has closed; this object must not be destroyed before that call.
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
  const std::shared_ptr<uint64_t> unsent_bytes_ =
      std::make_shared<uint64_t>(0);                   // bytes of answers that are not sent yet
  std::unique_ptr<transport::Connection> connection_;  // last: its callbacks use the others
};

// ok: a frame of a probe of this epoch, with the payload size that its head says.
Status check_probe(const transport::Arrival& arrival, uint32_t epoch);

}  // namespace byteps::node
