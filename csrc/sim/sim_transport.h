// A transport over the simulated network: like TCP, for loops in virtual time.
#pragma once

#include <memory>
#include <string>

#include "sim/sim_network.h"
#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::sim {

struct SimTransportOptions {
  std::string ip;                      // address of this host
  transport::Credentials credentials;  // peers with others are refused, as in the real handshake
};

// The transport of one process. `network` must outlive it and its connections.
std::unique_ptr<transport::Transport> make_sim_transport(SimNetwork& network, SimTransportOptions options);

}  // namespace byteps::sim
