#include "node/peer_connection.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

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

constexpr size_t kSlots = 4;  // frames of 1 MiB in flight
constexpr size_t kSlotBytes = kMaxPeerEchoBytes;
constexpr size_t kSmallBytes = 4096;
constexpr size_t kRoundTrips = 32;
constexpr size_t kLeastBulkFrames = 2 * kSlots;  // these are compared completely
constexpr TimeUs kBulkUs = 300'000;

void fill(MutableBytes memory) {
  std::minstd_rand random(1);  // a pattern that other data does not have
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random() >> 8);
}

std::string printable(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return !std::isprint(c); }, '?');
  return text;
}

}  // namespace

std::string encode(const PeerFacts& facts) {
  const std::string text = printable(facts.host) + "\n" + printable(facts.rdma_address) + "\n" +
                           (facts.has_no_rdma_device ? "none" : "") + "\n" + printable(facts.why_no_rdma);
  return text.substr(0, kMaxPeerFactsBytes);
}

Result<PeerFacts> decode_peer_facts(const std::string& text) {
  PeerFacts facts;
  std::istringstream lines(text);
  const auto next_line = [&lines] {
    std::string line;
    std::getline(lines, line);
    return printable(line);
  };
  facts.host = next_line();
  facts.rdma_address = next_line();
  facts.has_no_rdma_device = next_line() == "none";
  if (!lines) {
    return data_loss("expected the facts about a doctor's machine, got " + std::to_string(text.size()) +
                     " bytes of something else");
  }
  facts.why_no_rdma = next_line();
  return facts;
}

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

PeerRun::PeerRun(std::unique_ptr<Connection> connection)
    : memory_(2 * kSlots * kSlotBytes), connection_(std::move(connection)) {
  fill(memory_.bytes().first(kSlots * kSlotBytes));
}

void PeerRun::start(bool asks_for_facts, TimeUs deadline_us, Done done) {
  done_ = std::move(done);
  deadline_ = connection_->loop().run_at(deadline_us, [this] {
    finish(deadline_exceeded(peer() + ": " + std::to_string(round_trips_us_.size()) + " small and " +
                             std::to_string(bulk_frames_) +
                             " large frames have come back, then nothing more"));
  });
  connection_->start(this);
  if (asks_for_facts) {
    connection_->send(as_bytes(kPeerAsk), {}, nullptr);
  } else {
    send(0, kSmallBytes);
  }
}

MutableBytes PeerRun::out(size_t slot, size_t bytes) const {
  return memory_.bytes().subspan(slot * kSlotBytes, bytes);
}

MutableBytes PeerRun::in(size_t slot, size_t bytes) const {
  return memory_.bytes().subspan((kSlots + slot) * kSlotBytes, bytes);
}

void PeerRun::send(size_t slot, size_t bytes) {
  const MutableBytes answer = in(slot, bytes);
  const bool checks_all = bulk_frames_ < kLeastBulkFrames;
  std::memset(answer.data(), 0, checks_all ? bytes : kSmallBytes);
  under_way_.push_back({slot, bytes, now_us()});
  connection_->send(as_bytes(kPeerEcho),
                    {.data = out(slot, bytes), .reply_space = answer, .reuse_key = slot + 1}, nullptr);
}

Result<ReceiveBuffer> PeerRun::on_head(Connection&, const Arrival& arrival) {
  if (as_text(arrival.head) == kPeerTell && arrival.payload_bytes <= kMaxPeerFactsBytes) {
    facts_.resize(arrival.payload_bytes);
    return ReceiveBuffer::at(std::as_writable_bytes(std::span(facts_)));
  }
  if (as_text(arrival.head) == kPeerEcho && !under_way_.empty() &&
      arrival.payload_bytes == under_way_.front().bytes) {
    return ReceiveBuffer::at(in(under_way_.front().slot, arrival.payload_bytes));
  }
  return data_loss(peer() + ": expected the answer of a doctor of this version of byteps, got " +
                   std::to_string(arrival.payload_bytes) + " bytes of something else");
}

Status PeerRun::on_frame(Connection& connection, const Arrival& arrival, Bytes payload) {
  if (arrival.lease != transport::kNoLease) connection.return_lease(arrival.lease);
  if (as_text(arrival.head) != kPeerTell) return on_echo(payload);
  send(0, kSmallBytes);
  return Status::ok();
}

Status PeerRun::check_echo(const Sent& sent, Bytes payload) const {
  const size_t looked_at = bulk_frames_ < kLeastBulkFrames ? sent.bytes : kSmallBytes;
  if (payload.size() == sent.bytes &&
      std::memcmp(payload.data(), out(sent.slot, sent.bytes).data(), looked_at) == 0) {
    return Status::ok();
  }
  return data_loss(peer() + ": the echo differs from what was sent: " + std::to_string(payload.size()) +
                   " bytes, after " + std::to_string(round_trips_us_.size()) + " small and " +
                   std::to_string(bulk_frames_) + " large frames");
}

Status PeerRun::on_echo(Bytes payload) {
  if (under_way_.empty()) return data_loss(peer() + ": received an answer without a request");
  const Sent sent = under_way_.front();
  BPS_RETURN_IF_ERROR(check_echo(sent, payload));
  under_way_.pop_front();
  if (bulk_began_us_ > 0) {
    on_bulk_echo(sent);
    return Status::ok();
  }
  round_trips_us_.push_back(now_us() - sent.at_us);
  if (round_trips_us_.size() < kRoundTrips) {
    send(0, kSmallBytes);
    return Status::ok();
  }
  bulk_began_us_ = now_us();
  for (size_t slot = 0; slot < kSlots; ++slot) send(slot, kSlotBytes);
  return Status::ok();
}

void PeerRun::on_bulk_echo(const Sent& sent) {
  ++bulk_frames_;
  const TimeUs took_us = std::max<TimeUs>(now_us() - bulk_began_us_, 1);
  if (bulk_frames_ < kLeastBulkFrames || took_us < kBulkUs) return send(sent.slot, sent.bytes);
  std::nth_element(round_trips_us_.begin(), round_trips_us_.begin() + kRoundTrips / 2, round_trips_us_.end());
  const double bulk_bytes = static_cast<double>(bulk_frames_) * kSlotBytes;
  finish(Outcome{facts_,
                 {.round_trip_us = static_cast<double>(round_trips_us_[kRoundTrips / 2]),
                  .bytes_per_s = bulk_bytes * 1e6 / static_cast<double>(took_us)}});
}

void PeerRun::on_closed(Connection&, const Status& why) {
  finish(why.is_ok() ? unavailable(peer() + ": closed by the other end") : why);
}

void PeerRun::finish(Result<Outcome> outcome) {
  if (!done_) return;
  connection_->loop().cancel(std::exchange(deadline_, 0));
  std::exchange(done_, nullptr)(std::move(outcome));
}

}  // namespace byteps::node
