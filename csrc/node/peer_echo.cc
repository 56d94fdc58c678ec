#include "node/peer_echo.h"

#include <utility>

#include "node/peer_frames.h"

namespace byteps::node {

using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

namespace {

constexpr size_t kMaxUnsentBytes = size_t{64} << 20;

Status unexpected(const Connection& connection, const Arrival& arrival) {
  return data_loss(
      connection.peer() + ": expected a frame of a doctor of this version of byteps, got one of " +
      std::to_string(arrival.head.size()) + " and " + std::to_string(arrival.payload_bytes) + " bytes");
}

}  // namespace

PeerEcho::PeerEcho(std::unique_ptr<Connection> connection, std::string facts,
                   UniqueFunction<void(const PeerEcho&)> closed)
    : facts_(std::move(facts)), closed_(std::move(closed)), connection_(std::move(connection)) {}

Result<ReceiveBuffer> PeerEcho::on_head(Connection& connection, const Arrival& arrival) {
  if (as_text(arrival.head) != kPeerEcho || arrival.payload_bytes > kMaxPeerEchoBytes ||
      answers_->unsent_bytes + arrival.payload_bytes > kMaxUnsentBytes) {
    return unexpected(connection, arrival);
  }
  arriving_ = answers_->pool.acquire(arrival.payload_bytes);
  return ReceiveBuffer::at(arriving_.bytes());
}

Status PeerEcho::on_frame(Connection& connection, const Arrival& arrival, Bytes payload) {
  if (as_text(arrival.head) == kPeerAsk && payload.empty()) {
    if (arrival.lease != transport::kNoLease) connection.return_lease(arrival.lease);
    connection.send(as_bytes(kPeerTell), {as_bytes(facts_), {}}, nullptr);
    return Status::ok();
  }
  if (as_text(arrival.head) != kPeerEcho || payload.empty()) return unexpected(connection, arrival);
  ++frames_;
  answers_->unsent_bytes += payload.size();
  connection.send(arrival.head, {.data = payload, .reply_space = {}, .returns_lease = arrival.lease},
                  [answers = answers_, buffer = std::move(arriving_)](const Status&) {
                    answers->unsent_bytes -= buffer.bytes().size();
                  });
  return Status::ok();
}

void PeerEcho::on_closed(Connection&, const Status&) { closed_(*this); }

}  // namespace byteps::node
