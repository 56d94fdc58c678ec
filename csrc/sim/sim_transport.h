// A transport over the simulated network: like TCP, or like shared memory between processes of one
// machine. It reports uses that break the rules of transport.h (SimNetwork::violations).
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
  // Bytes of memory that connect() leases to the other end, as ShmOptions::arena_bytes; 0: none.
  // The same at both ends.
  size_t arena_bytes = 0;
};

// The transport of one process. `network` must outlive it and its connections.
std::unique_ptr<transport::Transport> make_sim_transport(SimNetwork& network, SimTransportOptions options);

}  // namespace byteps::sim
