// The RDMA cards and transport of a process, according to its configuration.
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

// Whether this machine has libibverbs and a usable port; opens nothing. The error says what is
// missing.
Status rdma_viable();

// The ports that a process with the address `ip` uses, in order. Errors: those of
// transport::rdma::choose_rails.
Result<std::vector<transport::rdma::PortReport>> choose_rdma_ports(const NodeConfig& config,
                                                                   const std::string& ip);

// Opens these ports. kUnimplemented: RDMA is disabled, or the machine has none
// (BYTEPS_TRANSPORT=auto); other errors name the problem and the remedy.
Result<RdmaCards> open_rdma_cards(const NodeConfig& config, const std::string& ip);

// The RDMA transport over these cards. `tcp`: see transport::make_rdma_transport.
std::unique_ptr<transport::Transport> make_rdma(const NodeConfig& config, Result<RdmaCards> cards,
                                                std::unique_ptr<transport::Transport> tcp = nullptr);

// Opens the cards and makes the transport. Errors: those of open_rdma_cards.
Result<std::unique_ptr<transport::Transport>> make_rdma(const NodeConfig& config, const std::string& ip,
                                                        std::unique_ptr<transport::Transport> tcp);

// The properties of an opened port, and whether it has the resources for a connection.
struct RdmaTrial {
  transport::rdma::NicInfo info;
  Status connections;  // ok: a queue pair can be created
  Status memory;       // ok: the memory of one connection can be registered
};
// Errors: those of transport::rdma::open_verbs_nic.
Result<RdmaTrial> try_rdma_port(const NodeConfig& config, const std::string& device, int port,
                                const std::string& ip);

}  // namespace byteps::node
