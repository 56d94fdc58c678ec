// Checks over which transports a machine that runs `byteps doctor --listen` can be reached, and how
// fast.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/event_flag.h"
#include "base/status.h"
#include "node/peer_connection.h"
#include "node/rdma.h"
#include "transport/address.h"

namespace byteps::node {

// One of this machine's cards, and the card at the other end.
struct PeerRail {
  std::string own;    // "mlx5_0 port 1, ::ffff:10.0.0.1 (RoCE v2, index 3)"
  std::string other;  // the card that answered: "rdma 10.0.0.2:9000 (mlx5_0 port 1, ...)"
  Status status;      // error, and the step at which it happened
  PeerSpeed speed;
};

struct PeerReport {
  PeerFacts facts;
  PeerSpeed tcp;
  // Why RDMA was not tried: the reason of this end (`cards`) or of the other; ok: see `rails`.
  Status rdma;
  std::vector<PeerRail> rails;
};

// Blocks; each step (connecting, or measuring one connection) takes at most `step_us`. `cards`: the
// cards for RDMA, or why there are none. Errors: the other end cannot be reached by TCP, or does
// not run the doctor; kAborted: interrupted.
Result<PeerReport> check_peer(const NodeConfig& config, const transport::Address& peer,
                              Result<RdmaCards> cards, TimeUs step_us, const KeepWaiting& keep_waiting);

}  // namespace byteps::node
