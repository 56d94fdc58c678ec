#include "node/rdma.h"

#include <utility>
#include <vector>

#include "node/host.h"
#include "transport/rdma/rails.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/rdma/verbs_nic.h"

namespace byteps::node {
namespace {

namespace rdma = transport::rdma;

Result<std::vector<std::unique_ptr<rdma::Nic>>> open_nics(const NodeConfig& config, const std::string& ip) {
  const std::vector<rdma::PortReport> ports = rdma::report_ports();
  if (ports.empty() && config.transport == "auto") return unimplemented("this machine has no RDMA device");
  const auto rails = rdma::choose_rails(
      ports, {.devices = config.rdma_devices, .ip = ip, .numa_node = rdma::numa_node_of_process()});
  if (!rails) return rails.status();
  const rdma::VerbsOptions options{.gid_index = config.rdma_gid_index,
                                   .traffic_class = config.rdma_traffic_class,
                                   .service_level = config.rdma_service_level,
                                   .timeout = config.rdma_timeout};
  std::vector<std::unique_ptr<rdma::Nic>> nics;
  for (const rdma::PortReport& rail : *rails) {
    auto nic = rdma::open_verbs_nic({.device = rail.device, .port = rail.port, .ip = ip}, options);
    if (!nic) return nic.status();
    nics.push_back(std::move(*nic));
  }
  return nics;
}

}  // namespace

Result<std::unique_ptr<transport::Transport>> make_rdma(const NodeConfig& config, const std::string& ip) {
  if (config.transport == "tcp") return unimplemented("BYTEPS_TRANSPORT is tcp");
  auto nics = open_nics(config, ip);
  if (!nics) return nics.status();
  transport::RdmaOptions options;
  options.stream.credentials = {config.secret, config.job_id};
  options.spin_us = usable_cores() > 1 ? config.rdma_spin_us : 0;
  return transport::make_rdma_transport(std::move(options), std::move(nics));
}

}  // namespace byteps::node
