// A connection that carries control messages, both ways: bytes in, checked messages out.
#pragma once

#include <memory>
#include <vector>

#include "protocol/message.h"
#include "transport/transport.h"

namespace byteps::cluster {

class ControlChannel;

// Callbacks run on the connection's loop. The channel may be destroyed only after they have returned.
class ControlEvents {
 public:
  virtual ~ControlEvents() = default;
  // An error closes the channel (on_channel_closed follows with it).
  virtual Status on_control(ControlChannel& channel, const protocol::Control& message) = 0;
  // Once, unless this side called close().
  virtual void on_channel_closed(ControlChannel& channel, const Status& why) = 0;
};

// All methods on the connection's loop.
class ControlChannel final : public transport::Receiver {
 public:
  ControlChannel(std::unique_ptr<transport::Connection> connection, ControlEvents& events);

  // Begins to deliver.
  void start() { connection_->start(this); }
  void send(const protocol::Control& message);
  void close() { connection_->close(); }
  void close_when_sent(TimeUs deadline_us) { connection_->close_when_sent(deadline_us); }
  const std::string& peer() const { return connection_->peer(); }

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  std::unique_ptr<transport::Connection> connection_;
  ControlEvents& events_;
  std::vector<std::byte> receive_buffer_;
};

}  // namespace byteps::cluster
