// A process's part in measuring network cards, as node/nic_probe is, but that one frame to each helper is all it sends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/message.h"
#include "sim/world.h"

namespace byteps::sim {

class SimProbe final : public Receiver {
 public:
  using Done = UniqueFunction<void(protocol::ProbeDone)>;

  SimProbe(World& world, VirtualProcess& process, uint32_t epoch)
      : world_(world), process_(process), epoch_(epoch) {}

  void listen(const std::string& address);
  void measure(const protocol::ProbeStart& start, Done done);
  // Closes everything.
  void stop();

  void on_head(Endpoint&, const Frame&) override {}
  void on_frame(Endpoint& endpoint, const Frame& frame) override;
  void on_closed(Endpoint& endpoint, const Status& why) override;

 private:
  void on_connected(uint32_t round, Result<Endpoint*> endpoint);
  void on_flow_ended();
  void finish();
  Frame make_probe();

  World& world_;
  VirtualProcess& process_;
  const uint32_t epoch_;
  bool stopped_ = false;
  std::vector<Endpoint*> endpoints_;  // of helped and of helpers; open
  // Of what is being measured.
  std::vector<Endpoint*> flows_;
  uint32_t round_ = 0;
  TimeUs start_us_ = 0;
  uint64_t answered_bytes_ = 0;
  size_t pending_ = 0;
  Done done_;
};

}  // namespace byteps::sim
