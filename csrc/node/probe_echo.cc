#include "node/probe_echo.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "protocol/message.h"
#include "protocol/nic_probe.h"

namespace byteps::node {

using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

Bytes probe_payload(size_t bytes) {
  static const std::vector<std::byte> zeros(protocol::kMaxProbeFrameBytes);
  return Bytes(zeros).first(bytes);
}

Status check_probe(const Arrival& arrival, uint32_t epoch) {
  const Result<protocol::DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (head->type != protocol::DataType::kProbe || head->epoch != epoch) {
    return data_loss("probe: expected a frame of a probe of this job, got another one");
  }
  if (head->bytes != arrival.payload_bytes || head->bytes == 0 ||
      head->bytes > protocol::kMaxProbeFrameBytes) {
    return data_loss("probe: expected as many bytes as the head says, at most " +
                     std::to_string(protocol::kMaxProbeFrameBytes) + ", got " +
                     std::to_string(arrival.payload_bytes));
  }
  return Status::ok();
}

ProbeEcho::ProbeEcho(std::unique_ptr<Connection> connection, uint32_t epoch,
                     UniqueFunction<void(const ProbeEcho&)> closed)
    : epoch_(epoch), closed_(std::move(closed)), connection_(std::move(connection)) {}

Result<ReceiveBuffer> ProbeEcho::on_head(Connection&, const Arrival& arrival) {
  BPS_RETURN_IF_ERROR(check_probe(arrival, epoch_));
  return ReceiveBuffer::discard();
}

Status ProbeEcho::on_frame(Connection& connection, const Arrival& arrival, Bytes) {
  BPS_RETURN_IF_ERROR(check_probe(arrival, epoch_));
  const size_t bytes = arrival.payload_bytes;
  if (*unsent_bytes_ + bytes > protocol::kMaxProbeWindowBytes) {
    return data_loss("probe: the other end does not read the answers: " + std::to_string(*unsent_bytes_) +
                     " bytes are unsent");
  }
  *unsent_bytes_ += bytes;
  connection.send(arrival.head, {probe_payload(bytes), {}},
                  [unsent = unsent_bytes_, bytes](const Status&) { *unsent -= bytes; });
  return Status::ok();
}

void ProbeEcho::on_closed(Connection& connection, const Status& why) {
  BPS_LOG(kDebug) << "measuring network cards: " << connection.peer() << " ended: " << why.message();
  closed_(*this);
}

}  // namespace byteps::node
