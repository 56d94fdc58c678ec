// Connections over the simulated network: a transport like TCP, for loops in virtual time.
#pragma once

#include <memory>
#include <string>

#include "sim/sim_network.h"
#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::sim {

struct SimTransportOptions {
  std::string ip;                      // of this host
  transport::Credentials credentials;  // ends with others are refused, as by the real handshake
};

// What a process has of the network. `network` outlives it and its connections.
std::unique_ptr<transport::Transport> make_sim_transport(SimNetwork& network, SimTransportOptions options);

}  // namespace byteps::sim
