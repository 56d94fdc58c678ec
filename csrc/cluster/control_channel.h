// A connection for control messages in both directions; checks received messages.
#pragma once

#include <memory>
#include <vector>

#include "protocol/message.h"
#include "transport/transport.h"

namespace byteps::cluster {

class ControlChannel;

// Called on the thread of the connection's loop. The channel must not be destroyed before the
// callback has returned.
class ControlEvents {
 public:
  virtual ~ControlEvents() = default;
  // An error closes the channel; on_channel_closed follows with that error.
  virtual Status on_control(ControlChannel& channel, const protocol::Control& message) = 0;
  // The network has reset the connection (ControlChannel::is_interrupted).
  virtual void on_channel_interrupted(ControlChannel& channel) { static_cast<void>(channel); }
  // Called once, unless this side has called close().
  virtual void on_channel_closed(ControlChannel& channel, const Status& why) = 0;
};

// All methods run on the thread of the connection's loop.
class ControlChannel final : public transport::Receiver {
 public:
  ControlChannel(std::unique_ptr<transport::Connection> connection, ControlEvents& events);

  // Starts to deliver messages.
  void start() { connection_->start(this); }
  void send(const protocol::Control& message);
  // Sends a payload that other channels send as well; it is not copied.
  void send(const protocol::ControlHead& head, std::shared_ptr<const std::vector<std::byte>> payload);
  void close() { connection_->close(); }
  void close_when_sent(TimeUs deadline_us) { connection_->close_when_sent(deadline_us); }
  // As Connection::is_interrupted.
  bool is_interrupted() const { return connection_->is_interrupted(); }
  const std::string& peer() const { return connection_->peer(); }

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_interrupted(transport::Connection& connection) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  std::unique_ptr<transport::Connection> connection_;
  ControlEvents& events_;
  std::vector<std::byte> receive_buffer_;
};

}  // namespace byteps::cluster
