// A process's part in measuring network cards before the job starts: protocol/nic_survey says when and with whom.
//
// Built, used and destroyed on one control loop's thread, or after that loop has stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "node/probe_echo.h"
#include "node/probe_run.h"
#include "protocol/message.h"
#include "transport/transport.h"

namespace byteps::node {

class NicProbe {
 public:
  // On the control loop.
  using Done = UniqueFunction<void(protocol::ProbeDone)>;

  // All but the control loop are used for what is measured, each alike.
  NicProbe(transport::Transport& tcp, transport::EventLoop& control,
           const std::vector<transport::EventLoop*>& loops, uint32_t epoch);
  ~NicProbe();

  // From now on others are helped, at these addresses: one on each loop. Blocks for the loops.
  Result<std::vector<std::string>> listen(const std::string& ip);
  // One at a time; `done` is called once, unless this object stops before.
  void measure(const protocol::ProbeStart& start, Done done);
  // Closes everything; nothing is called any more. To be called before the loops stop.
  void stop();

 private:
  struct LoopState;

  void on_run_done(double bytes_per_s);

  transport::Transport& tcp_;
  transport::EventLoop& control_;
  const uint32_t epoch_;
  std::vector<std::shared_ptr<LoopState>> seats_;  // one on each loop
  // Of what is being measured.
  uint32_t round_ = 0;
  size_t runs_left_ = 0;
  double bytes_per_s_ = 0;
  Done done_;
};

// The speed of each machine's card: "100 Mbit/s: node3, 200 Mbit/s: node1 and node2".
std::string describe_cards(const std::vector<protocol::NodeInfo>& nodes);

}  // namespace byteps::node
