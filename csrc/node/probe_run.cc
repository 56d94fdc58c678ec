#include "node/probe_run.h"

#include <utility>

#include "base/log.h"
#include "node/probe_echo.h"
#include "protocol/message.h"

namespace byteps::node {

using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

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

  Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
    BPS_RETURN_IF_ERROR(check_probe(arrival, run_.epoch_));
    return ReceiveBuffer::discard();
  }
  Status on_frame(Connection&, const Arrival& arrival, Bytes) override {
    BPS_RETURN_IF_ERROR(check_probe(arrival, run_.epoch_));
    BPS_RETURN_IF_ERROR(window_.on_answer(arrival.payload_bytes));
    if (run_.on_answer(arrival.payload_bytes)) send();
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
    while ((head.bytes = window_.next_frame()) > 0) {
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

// Returns false if the meter has enough data.
bool ProbeRun::on_answer(uint64_t bytes) {
  const TimeUs now = loop_.now_us();
  meter_.on_answer(bytes, now);
  if (!meter_.done(now)) return true;
  finish();
  return false;
}

void ProbeRun::on_flow_ended() {
  if (--pending_ == 0) finish();
}

void ProbeRun::finish() {
  if (!done_) return;
  auto done = std::exchange(done_, nullptr);
  stop();
  done(meter_.bytes_per_s());
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
