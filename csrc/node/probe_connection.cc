#include "node/probe_connection.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "protocol/message.h"

namespace byteps::node {

using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

namespace {

// `bytes` zeros, at most protocol::kMaxProbeFrameBytes. Valid forever.
Bytes probe_payload(size_t bytes) {
  static const std::vector<std::byte> zeros(protocol::kMaxProbeFrameBytes);
  return Bytes(zeros).first(bytes);
}

// ok: a frame of a probe of this epoch, with the payload size that its head says.
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

}  // namespace

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

// The connection to one helper.
class ProbeRun::Flow final : public transport::Receiver {
 public:
  Flow(ProbeRun& run, std::unique_ptr<Connection> connection)
      : run_(run), connection_(std::move(connection)) {}

  void start() {
    connection_->start(this);
    send();
  }
  void close() { connection_->close(); }
  const protocol::ProbeWindow& window() const { return window_; }
  transport::SentTraffic sent_traffic() {
    return connection_->sent_traffic().value_or(transport::SentTraffic());
  }

  Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
    BPS_RETURN_IF_ERROR(check_probe(arrival, run_.epoch_));
    return ReceiveBuffer::discard();
  }
  Status on_frame(Connection&, const Arrival& arrival, Bytes) override {
    BPS_RETURN_IF_ERROR(check_probe(arrival, run_.epoch_));
    BPS_RETURN_IF_ERROR(window_.on_answer(arrival.payload_bytes, run_.loop_.now_us()));
    run_.on_answer(arrival.payload_bytes);
    send();
    return Status::ok();
  }
  void on_closed(Connection& connection, const Status& why) override {
    BPS_LOG(kInfo) << "measuring the network card: " << connection.peer() << " ended: " << why.message();
    run_.on_flow_ended();
  }

 private:
  void send() {
    protocol::DataHead head;
    head.type = protocol::DataType::kProbe;
    head.epoch = run_.epoch_;
    while ((head.bytes = window_.next_frame(run_.loop_.now_us())) > 0) {
      connection_->send(protocol::encode(head), {probe_payload(head.bytes), {}}, nullptr);
    }
  }

  ProbeRun& run_;
  protocol::ProbeWindow window_;
  std::unique_ptr<Connection> connection_;  // last: its callbacks use the others
};

ProbeRun::ProbeRun(transport::EventLoop& loop, transport::Transport& tcp, uint32_t epoch)
    : loop_(loop), tcp_(tcp), epoch_(epoch) {}

ProbeRun::~ProbeRun() { stop(); }

void ProbeRun::start(const std::vector<transport::Address>& helpers, Done done) {
  meter_ = protocol::ProbeMeter(loop_.now_us());
  done_ = std::move(done);
  pending_ = helpers.size();
  timer_ = loop_.run_at(meter_.deadline_us(), [this] { finish(); });
  for (const transport::Address& helper : helpers) {
    tcp_.connect(loop_, helper, meter_.deadline_us(), [run = weak_from_this()](auto connection) {
      if (const auto self = run.lock()) self->on_connected(std::move(connection));
    });
  }
  if (helpers.empty()) finish();
}

void ProbeRun::on_connected(Result<std::unique_ptr<Connection>> connection) {
  if (!done_) return;
  if (!connection) {
    BPS_LOG(kInfo) << "measuring the network card: " << connection.status().message();
    return on_flow_ended();
  }
  flows_.push_back(std::make_unique<Flow>(*this, std::move(*connection)));
  flows_.back()->start();
}

void ProbeRun::on_answer(uint64_t bytes) {
  if (!done_) return;
  const TimeUs now = loop_.now_us();
  bool settled = true;
  TimeUs rtt_us = 0;
  for (const auto& flow : flows_) {
    settled = settled && flow->window().is_settled();
    if (flow->window().min_rtt_us() != kNever) rtt_us = std::max(rtt_us, flow->window().min_rtt_us());
  }
  const bool measured = meter_.measures();
  meter_.on_answer(bytes, now, settled, rtt_us);
  if (!measured && meter_.measures()) sent_before_ = sent_traffic();
  if (meter_.done(now)) finish();
}

void ProbeRun::on_flow_ended() {
  if (--pending_ == 0) finish();
}

void ProbeRun::finish() {
  if (!done_) return;
  loop_.cancel(std::exchange(timer_, 0));
  const transport::SentTraffic sent = sent_traffic();
  const auto bytes = static_cast<double>(sent.bytes - std::min(sent.bytes, sent_before_.bytes));
  const uint64_t resent = sent.resent_bytes - std::min(sent.resent_bytes, sent_before_.resent_bytes);
  std::exchange(done_, nullptr)({.bytes_per_s = meter_.bytes_per_s(),
                                 // A frame is many packets, which wait for each other.
                                 .rtt_us = sent.min_rtt_us > 0 ? sent.min_rtt_us : meter_.rtt_us(),
                                 .loss = bytes > 0 ? static_cast<double>(resent) / bytes : 0});
}

transport::SentTraffic ProbeRun::sent_traffic() {
  transport::SentTraffic sum;
  for (const auto& flow : flows_) sum += flow->sent_traffic();
  return sum;
}

void ProbeRun::stop() {
  done_ = nullptr;
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  for (const auto& flow : flows_) flow->close();
  // Destroyed later, because one of them may be the caller.
  loop_.post([doomed = std::move(flows_)] {});
  flows_.clear();
}

}  // namespace byteps::node
