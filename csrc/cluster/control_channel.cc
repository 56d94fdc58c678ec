#include "cluster/control_channel.h"

#include <utility>

namespace byteps::cluster {

using protocol::Control;
using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

ControlChannel::ControlChannel(std::unique_ptr<Connection> connection, ControlEvents& events)
    : connection_(std::move(connection)), events_(events) {}

void ControlChannel::send(const Control& message) {
  protocol::EncodedControl encoded = protocol::encode(message);
  send(encoded.head, std::make_shared<const std::vector<std::byte>>(std::move(encoded.payload)));
}

void ControlChannel::send(const protocol::ControlHead& head,
                          std::shared_ptr<const std::vector<std::byte>> payload) {
  connection_->send(head, {.data = *payload, .reply_space = {}, .keep = payload},
                    [payload](const Status&) {});
}

Result<ReceiveBuffer> ControlChannel::on_head(Connection&, const Arrival& arrival) {
  BPS_RETURN_IF_ERROR(protocol::check_control_head(arrival.head, arrival.payload_bytes));
  receive_buffer_.resize(arrival.payload_bytes);
  return ReceiveBuffer::at(receive_buffer_);
}

Status ControlChannel::on_frame(Connection&, const Arrival& arrival, Bytes payload) {
  Result<Control> message = protocol::decode_control(arrival.head, payload);
  if (!message) return message.status();
  return events_.on_control(*this, *message);
}

void ControlChannel::on_interrupted(Connection&) { events_.on_channel_interrupted(*this); }

void ControlChannel::on_closed(Connection&, const Status& why) { events_.on_channel_closed(*this, why); }

}  // namespace byteps::cluster
