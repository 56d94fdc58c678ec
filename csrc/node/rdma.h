// RDMA in a process, as its configuration wants it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/port_report.h"
#include "transport/transport.h"

namespace byteps::node {

using RdmaCards = std::vector<std::unique_ptr<transport::rdma::Nic>>;

// Whether this machine has libibverbs and a port that can be used; what the configuration says does not count, and nothing is
// opened.
Status rdma_viable();

// The ports that a process uses which hands out `ip`, in order. Errors: of transport::rdma::choose_rails.
Result<std::vector<transport::rdma::PortReport>> choose_rdma_ports(const NodeConfig& config,
                                                                   const std::string& ip);

// Those, opened. An error says why this process has to do without: kUnimplemented: nobody wants RDMA, or the machine has
// none (BYTEPS_TRANSPORT=auto); else what is wrong and the remedy.
Result<RdmaCards> open_rdma_cards(const NodeConfig& config, const std::string& ip);

// The RDMA transport over them.
std::unique_ptr<transport::Transport> make_rdma(const NodeConfig& config, Result<RdmaCards> cards);

// The same in one. Errors: of open_rdma_cards.
Result<std::unique_ptr<transport::Transport>> make_rdma(const NodeConfig& config, const std::string& ip);

// What a port says of itself once it is opened, and whether it takes what a connection needs.
struct RdmaTrial {
  transport::rdma::NicInfo info;
  Status connections;  // whether a queue pair can be made
  Status memory;       // whether the card takes as much as one needs
};
// Errors: of transport::rdma::open_verbs_nic.
Result<RdmaTrial> try_rdma_port(const NodeConfig& config, const std::string& device, int port,
                                const std::string& ip);

}  // namespace byteps::node
