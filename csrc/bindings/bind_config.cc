#include <pybind11/stl.h>

#include "base/config.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

// Sets attributes, so that an unknown name or a wrong type raises Python's own error.
NodeConfig config_from(const py::kwargs& fields) {
  NodeConfig config;
  py::object view = py::cast(&config, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) py::setattr(view, name, value);
  return config;
}

}  // namespace

void bind_config(py::module_& module) {
  // The secret is bytes, not text.
  const auto get_secret = [](const NodeConfig& config) { return py::bytes(config.secret); };
  const auto set_secret = [](NodeConfig& config, const py::bytes& secret) {
    config.secret = std::string(secret);
  };
  py::class_<NodeConfig>(module, "NodeConfig", py::is_final())
      .def(py::init([](const py::kwargs& fields) { return config_from(fields); }))
      .def_readwrite("role", &NodeConfig::role)
      .def_readwrite("rank", &NodeConfig::rank)
      .def_readwrite("num_workers", &NodeConfig::num_workers)
      .def_readwrite("num_servers", &NodeConfig::num_servers)
      .def_readwrite("local_rank", &NodeConfig::local_rank)
      .def_readwrite("local_size", &NodeConfig::local_size)
      .def_readwrite("host_scheduler", &NodeConfig::host_scheduler)
      .def_readwrite("scheduler_by_rank_0", &NodeConfig::scheduler_by_rank_0)
      .def_readwrite("scheduler_host", &NodeConfig::scheduler_host)
      .def_readwrite("scheduler_ports", &NodeConfig::scheduler_ports)
      .def_readwrite("scheduler_fd", &NodeConfig::scheduler_fd)
      .def_readwrite("machine", &NodeConfig::machine)
      .def_readwrite("shm", &NodeConfig::shm)
      .def_readwrite("transport", &NodeConfig::transport)
      .def_readwrite("rdma_devices", &NodeConfig::rdma_devices)
      .def_readwrite("rdma_gid_index", &NodeConfig::rdma_gid_index)
      .def_readwrite("rdma_traffic_class", &NodeConfig::rdma_traffic_class)
      .def_readwrite("rdma_service_level", &NodeConfig::rdma_service_level)
      .def_readwrite("rdma_timeout", &NodeConfig::rdma_timeout)
      .def_readwrite("rdma_spin_us", &NodeConfig::rdma_spin_us)
      .def_readwrite("interface", &NodeConfig::interface)
      .def_readwrite("node_host", &NodeConfig::node_host)
      .def_property("secret", get_secret, set_secret)
      .def_readwrite("loopback_only", &NodeConfig::loopback_only)
      .def_readwrite("job_id", &NodeConfig::job_id)
      .def_readwrite("version", &NodeConfig::version)
      .def_readwrite("start_timeout_s", &NodeConfig::start_timeout_s)
      .def_readwrite("timeout_s", &NodeConfig::timeout_s)
      .def_readwrite("op_timeout_s", &NodeConfig::op_timeout_s)
      .def_readwrite("stall_warning_s", &NodeConfig::stall_warning_s)
      .def_readwrite("partition_bytes", &NodeConfig::partition_bytes)
      .def_readwrite("credit_bytes", &NodeConfig::credit_bytes)
      .def_readwrite("autotune", &NodeConfig::autotune)
      .def_readwrite("service_threads", &NodeConfig::service_threads)
      .def_readwrite("placement", &NodeConfig::placement)
      .def_readwrite("nic_mbps", &NodeConfig::nic_mbps)
      .def_readwrite("nic_probe", &NodeConfig::nic_probe)
      .def_readwrite("log_level", &NodeConfig::log_level);
}

}  // namespace byteps::bindings
