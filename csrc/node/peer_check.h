// Whether another machine, on which `byteps doctor --listen` runs (peer_listener.h), can be reached, by what and how fast.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "node/peer_facts.h"
#include "node/peer_run.h"
#include "node/rdma.h"
#include "node/waiting.h"
#include "transport/address.h"

namespace byteps::node {

// One of this machine's cards, and its counterpart.
struct PeerRail {
  std::string own;    // "mlx5_0 port 1, ::ffff:10.0.0.1 (RoCE v2, index 3)"
  std::string other;  // who answered: "rdma 10.0.0.2:9000 (mlx5_0 port 1, ...)"
  Status status;      // what went wrong, and when
  PeerSpeed speed;
};

struct PeerReport {
  PeerFacts facts;
  PeerSpeed tcp;
  Status rdma;  // why it was not tried: this end's reason (`cards`), or the other's; ok: see `rails`
  std::vector<PeerRail> rails;
};

// Blocks; each step (a connection, what is measured on it) has `step_us`. `cards`: for RDMA, or why there are none. Errors:
// the other end cannot be reached by TCP, or is no doctor; kAborted: interrupted.
Result<PeerReport> check_peer(const NodeConfig& config, const transport::Address& peer,
                              Result<RdmaCards> cards, TimeUs step_us, const KeepWaiting& keep_waiting);

}  // namespace byteps::node
