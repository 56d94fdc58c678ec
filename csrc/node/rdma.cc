#include "node/rdma.h"

#include <utility>

#include "base/slab.h"
#include "node/host.h"
#include "transport/rdma/rails.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/rdma/ring.h"
#include "transport/rdma/verbs_library.h"
#include "transport/rdma/verbs_nic.h"

namespace byteps::node {
namespace {

using transport::rdma::Access;
using transport::rdma::choose_rails;
using transport::rdma::Nic;
using transport::rdma::open_verbs_nic;
using transport::rdma::PortReport;
using transport::rdma::report_ports;
using transport::rdma::VerbsOptions;

// Memory that a connection needs at least: both halves of its ring.
constexpr size_t kTrialBytes = 2 * transport::rdma::kRingBytes;

VerbsOptions verbs_options(const NodeConfig& config) {
  return {.gid_index = config.rdma_gid_index,
          .traffic_class = config.rdma_traffic_class,
          .service_level = config.rdma_service_level,
          .timeout = config.rdma_timeout};
}

Status try_queue_pair(Nic& nic) {
  const auto channel = nic.make_channel();
  if (!channel) return channel.status();
  return nic.make_queue_pair(**channel, nullptr, {}).status();
}

}  // namespace

Status rdma_viable() {
  const std::vector<PortReport> ports = report_ports();
  if (ports.empty()) return unimplemented("this machine has no RDMA device");
  const auto library = transport::rdma::verbs_library();
  return library ? choose_rails(ports, {}).status() : library.status();
}

Result<std::vector<PortReport>> choose_rdma_ports(const NodeConfig& config, const std::string& ip) {
  return choose_rails(
      report_ports(),
      {.devices = config.rdma_devices, .ip = ip, .numa_node = transport::rdma::numa_node_of_process()});
}

Result<RdmaCards> open_rdma_cards(const NodeConfig& config, const std::string& ip) {
  if (config.transport == "tcp") return unimplemented("BYTEPS_TRANSPORT is tcp");
  if (config.transport == "auto" && report_ports().empty()) {
    return unimplemented("this machine has no RDMA device");
  }
  const auto rails = choose_rdma_ports(config, ip);
  if (!rails) return rails.status();
  RdmaCards cards;
  for (const PortReport& rail : *rails) {
    auto nic = open_verbs_nic({.device = rail.device, .port = rail.port, .ip = ip}, verbs_options(config));
    if (!nic) return nic.status();
    cards.push_back(std::move(*nic));
  }
  return cards;
}

std::unique_ptr<transport::Transport> make_rdma(const NodeConfig& config, Result<RdmaCards> cards,
                                                std::unique_ptr<transport::Transport> tcp) {
  transport::RdmaOptions options;
  options.stream.credentials = {config.secret, config.job_id, config.loopback_only};
  options.stream.handshake_timeout_s = config.timeout_s;
  options.renewal_limit_us = seconds_to_us(config.timeout_s);
  options.spin_us = usable_cores() > 1 ? config.rdma_spin_us : 0;
  return transport::make_rdma_transport(std::move(options), std::move(cards), std::move(tcp));
}

Result<std::unique_ptr<transport::Transport>> make_rdma(const NodeConfig& config, const std::string& ip,
                                                        std::unique_ptr<transport::Transport> tcp) {
  auto cards = open_rdma_cards(config, ip);
  if (!cards) return cards.status();
  return make_rdma(config, std::move(cards), std::move(tcp));
}

Result<RdmaTrial> try_rdma_port(const NodeConfig& config, const std::string& device, int port,
                                const std::string& ip) {
  auto nic = open_verbs_nic({.device = device, .port = port, .ip = ip}, verbs_options(config));
  if (!nic) return nic.status();
  const Slab slab(kTrialBytes);
  return RdmaTrial{.info = (*nic)->info(),
                   .connections = try_queue_pair(**nic),
                   .memory = (*nic)->register_memory(slab.bytes(), Access::kRemoteWrite).status()};
}

}  // namespace byteps::node
