// The measuring end of a probe on one event loop (protocol/nic_probe): keeps a connection to each
// helper busy until the meter has enough data.
#pragma once

#include <memory>
#include <vector>

#include "protocol/nic_probe.h"
#include "transport/transport.h"

namespace byteps::node {

// Used on the loop's thread; the constructor: any thread. Destroyed on the loop's thread or after
// the loop has stopped.
class ProbeRun final : public std::enable_shared_from_this<ProbeRun> {
 public:
  using Done = UniqueFunction<void(double bytes_per_s)>;

  ProbeRun(transport::EventLoop& loop, transport::Transport& tcp, uint32_t epoch);
  ~ProbeRun();

  // To be called once. `done` is called once, unless stop() is called before: bytes of payload per
  // second in each direction; 0: unknown.
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
  Done done_;  // null: not started, or finished
  transport::EventLoop::TimerId timer_ = 0;
  size_t pending_ = 0;  // number of flows that are connecting or have not ended
  std::vector<std::unique_ptr<Flow>> flows_;
};

}  // namespace byteps::node
