// A process's part in measuring network cards before the job starts; protocol/nic_survey decides
// who measures when, and with whom. Created, used and destroyed on the control loop, or after that
// loop has stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_function.h"
#include "protocol/message.h"
#include "protocol/nic_probe.h"
#include "transport/transport.h"

namespace byteps::node {

class NicProbe {
 public:
  // Called on the control loop.
  using Done = UniqueFunction<void(protocol::ProbeDone)>;

  // Measures on `loops`, with about as many connections on each.
  NicProbe(transport::Transport& tcp, transport::EventLoop& control,
           const std::vector<transport::EventLoop*>& loops, uint32_t epoch);
  ~NicProbe();

  // Starts to answer the probes of others, and returns the addresses to which they connect, one per
  // loop. Blocks until each loop has run it.
  Result<std::vector<std::string>> listen(const std::string& ip);
  // Measures this machine's card; one measurement at a time. `done` is called once, unless stop()
  // is called before.
  void measure(const protocol::ProbeStart& start, Done done);
  // Closes all connections; no callback runs after it. To be called before the loops stop.
  void stop();

 private:
  struct LoopState;

  void on_run_done(const protocol::CardMeasurement& of_run);

  transport::Transport& tcp_;
  transport::EventLoop& control_;
  const uint32_t epoch_;
  std::vector<std::shared_ptr<LoopState>> loop_states_;  // one per loop
  // The measurement in progress.
  uint32_t round_ = 0;
  size_t runs_left_ = 0;
  protocol::CardMeasurement measured_;
  Done done_;
};

// The speeds of the machines' cards: "100 Mbit/s: node3, 200 Mbit/s with 8 connections: node1 and
// node2".
std::string describe_cards(const std::vector<protocol::NodeInfo>& nodes);

}  // namespace byteps::node
