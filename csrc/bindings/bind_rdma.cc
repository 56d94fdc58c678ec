#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "node/peer_check.h"
#include "node/peer_listener.h"
#include "node/rdma.h"
#include "transport/rdma/port_report.h"
#include "transport/rdma/verbs_library.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

using transport::rdma::GidEntry;
using transport::rdma::GidType;
using transport::rdma::PortReport;

py::dict dict_of(const GidEntry& gid, bool is_ethernet) {
  py::dict result;
  result["index"] = gid.index;
  result["gid"] = transport::rdma::to_text(gid.gid);
  result["kind"] = !is_ethernet ? "InfiniBand" : gid.type == GidType::kV2 ? "RoCE v2" : "RoCE v1";
  result["interface"] = gid.interface;
  return result;
}

py::dict dict_of(const PortReport& port) {
  py::list gids;
  for (const GidEntry& gid : port.gids) gids.append(dict_of(gid, port.is_ethernet));
  py::dict result;
  result["device"] = port.device;
  result["port"] = port.port;
  result["is_ethernet"] = port.is_ethernet;
  result["state"] = port.state;
  result["physical"] = port.physical;
  result["mbps"] = port.mbps;
  result["numa_node"] = port.numa_node;
  result["lid"] = port.lid;
  result["interface"] = port.interface;
  result["gids"] = gids;
  result["why_not"] = port.why_not;
  return result;
}

std::string rdma_library() {
  return without_gil([] { return transport::rdma::verbs_library().status(); }).message();
}

py::list rdma_ports() {
  py::list result;
  for (const PortReport& port : without_gil([] { return transport::rdma::report_ports(); })) {
    result.append(dict_of(port));
  }
  return result;
}

py::list rdma_rails(const NodeConfig& config, const std::string& address) {
  py::list result;
  auto rails = without_gil([&] { return node::choose_rdma_ports(config, address); });
  for (const PortReport& rail : value_or_throw(std::move(rails))) {
    result.append(py::make_tuple(rail.device, rail.port));
  }
  return result;
}

py::dict try_rdma_port(const NodeConfig& config, const std::string& device, int port,
                       const std::string& address) {
  const node::RdmaTrial trial =
      value_or_throw(without_gil([&] { return node::try_rdma_port(config, device, port, address); }));
  py::dict result;
  result["gid"] = trial.info.gid_text;
  result["gid_index"] = trial.info.gid_index;
  result["mtu_bytes"] = trial.info.mtu_bytes;
  result["interface"] = trial.info.interface;
  result["on_demand_paging"] = trial.info.on_demand_paging;
  result["why_no_connections"] = trial.connections.message();
  result["why_no_memory"] = trial.memory.message();
  return result;
}

py::dict dict_of(const node::PeerSpeed& speed) {
  py::dict result;
  result["round_trip_us"] = speed.round_trip_us;
  result["bytes_per_s"] = speed.bytes_per_s;
  return result;
}

py::dict dict_of(const node::PeerReport& report) {
  py::list rails;
  for (const node::PeerRail& rail : report.rails) {
    py::dict each = dict_of(rail.speed);
    each["own"] = rail.own;
    each["other"] = rail.other;
    each["failure"] = rail.status.message();
    rails.append(each);
  }
  py::dict result;
  result["host"] = report.facts.host;
  result["tcp"] = dict_of(report.tcp);
  result["why_no_rdma"] = report.rdma.message();
  result["rdma_is_absent"] = report.rdma.code() == StatusCode::kUnimplemented;
  result["rails"] = rails;
  return result;
}

py::dict check_peer(const NodeConfig& config, const std::string& address, const std::string& peer) {
  const auto parsed = value_or_throw(transport::parse_address(peer));
  const TimeUs step_us = seconds_to_us(config.timeout_s);
  return dict_of(value_or_throw(without_gil([&] {
    return node::check_peer(config, parsed, node::open_rdma_cards(config, address), step_us,
                            keep_waiting_unless_signalled());
  })));
}

std::unique_ptr<node::PeerListener> listen_for_peers(const NodeConfig& config, const std::string& address,
                                                     uint16_t port) {
  return value_or_throw(without_gil([&] {
    return node::PeerListener::create(config, address, port, node::open_rdma_cards(config, address));
  }));
}

std::string next_event(node::PeerListener& listener, double timeout_s) {
  return value_or_throw(without_gil(
      [&] { return listener.next(now_us() + seconds_to_us(timeout_s), keep_waiting_unless_signalled()); }));
}

}  // namespace

void bind_rdma(py::module_& module) {
  using py::arg;
  module.def("rdma_library", &rdma_library);
  module.def("rdma_ports", &rdma_ports);
  module.def("rdma_rails", &rdma_rails, arg("config"), arg("address"));
  module.def("try_rdma_port", &try_rdma_port, arg("config"), arg("device"), arg("port"), arg("address"));
  module.def("check_peer", &check_peer, arg("config"), arg("address"), arg("peer"));
  py::class_<node::PeerListener>(module, "PeerListener", py::is_final())
      .def(py::init(&listen_for_peers), arg("config"), arg("address"), arg("port"))
      .def_property_readonly(
          "address", [](const node::PeerListener& listener) { return listener.address().to_string(); })
      .def_property_readonly("why_no_rdma",
                             [](const node::PeerListener& listener) { return listener.rdma().message(); })
      .def("next", &next_event, arg("timeout_s"));
}

}  // namespace byteps::bindings
