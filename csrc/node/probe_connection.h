// Both ends of the connections of a probe (protocol/nic_probe).
#pragma once

#include <memory>
#include <vector>

#include "base/unique_function.h"
#include "protocol/nic_probe.h"
#include "transport/transport.h"

namespace byteps::node {

// The helper's end of a connection: discards each frame and answers it with one of the same size.
// Used on the thread of the connection's loop.
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

// The measuring end on one event loop: keeps a connection to each helper busy until it is stopped.
// So the card's other loops, which may measure for longer, share it with this one until they have
// done so: else their rates together would exceed the card's.
//
// Used on the loop's thread; the constructor: any thread. Destroyed on the loop's thread or after
// the loop has stopped.
class ProbeRun final : public std::enable_shared_from_this<ProbeRun> {
 public:
  using Done = UniqueFunction<void(const protocol::CardMeasurement&)>;

  ProbeRun(transport::EventLoop& loop, transport::Transport& tcp, uint32_t epoch);
  ~ProbeRun();

  // To be called once. Makes a connection to each of `helpers`, which may contain equal ones. `done`
  // is called once, unless stop() is called before. The connections stay busy.
  void start(const std::vector<transport::Address>& helpers, Done done);
  void stop();

 private:
  class Flow;

  void on_connected(Result<std::unique_ptr<transport::Connection>> connection);
  void on_answer(uint64_t bytes);
  void on_flow_ended();
  void finish();
  // By all flows.
  transport::SentTraffic sent_traffic();

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const uint32_t epoch_;
  protocol::ProbeMeter meter_{0};
  transport::SentTraffic sent_before_;  // the meter measured
  Done done_;                           // null: not started, or finished
  transport::EventLoop::TimerId timer_ = 0;
  size_t pending_ = 0;  // number of flows that are connecting or have not ended
  std::vector<std::unique_ptr<Flow>> flows_;
};

}  // namespace byteps::node
