// The hub's part in measuring its network card on one event loop (protocol/nic_probe): a connection to each helper,
// all kept busy until the meter has seen enough.
#pragma once

#include <memory>
#include <vector>

#include "protocol/nic_probe.h"
#include "transport/transport.h"

namespace byteps::node {

// On the loop's thread, but for the constructor; destroyed on it, or after it has stopped.
class ProbeRun final : public std::enable_shared_from_this<ProbeRun> {
 public:
  using Done = UniqueFunction<void(double bytes_per_s)>;

  ProbeRun(transport::EventLoop& loop, transport::Transport& tcp, uint32_t epoch);
  ~ProbeRun();

  // Once. `done` is called once, unless stop() comes before: with payload each way; 0: no idea.
  void start(const std::vector<transport::Address>& helpers, Done done);
  void stop();

 private:
  class Flow;

  void on_connected(Result<std::unique_ptr<transport::Connection>> connection);
  bool on_answer(uint64_t bytes);
  void on_flow_ended();
  void finish();

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const uint32_t epoch_;
  protocol::ProbeMeter meter_{0};
  Done done_;  // null: not started, or over
  transport::EventLoop::TimerId timer_ = 0;
  size_t pending_ = 0;  // flows that are not made yet, or have not ended
  std::vector<std::unique_ptr<Flow>> flows_;
};

}  // namespace byteps::node
