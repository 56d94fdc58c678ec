#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/slab.h"
#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "kernels/cpu_features.h"
#include "kernels/sum.h"
#include "node/host.h"
#include "node/rdma.h"
#include "transport/address.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

py::dict viable_transports() {
  py::dict result;
  const auto tcp = transport::make_tcp_transport({});
  const auto shm = transport::make_shm_transport({});
  result["inproc"] = "";
  result[shm->name()] = shm->viable().message();
  result[tcp->name()] = tcp->viable().message();
  result["rdma"] = node::rdma_viable().message();
  return result;
}

py::dict isa_levels() {
  py::dict result;
  result["scalar"] = kernels::is_supported(kernels::Isa::kScalar);
  result["avx2"] = kernels::is_supported(kernels::Isa::kAvx2);
  result["avx512"] = kernels::is_supported(kernels::Isa::kAvx512);
  return result;
}

void reduce_n(uintptr_t dst, const std::vector<uintptr_t>& srcs, size_t count, int dtype, int op) {
  const auto checked_dtype = dtype_from(static_cast<uint8_t>(dtype));
  const auto checked_op = reduce_op_from(static_cast<uint8_t>(op));
  if (!checked_dtype) throw_if_failed(checked_dtype.status());
  if (!checked_op) throw_if_failed(checked_op.status());
  if (srcs.empty() || *checked_op >= ReduceOp::kBroadcast) {
    throw_if_failed(invalid_argument("reduce_n: expected a reduction and at least one source"));
  }
  std::vector<const void*> sources;
  for (const uintptr_t src : srcs) sources.push_back(reinterpret_cast<const void*>(src));
  const kernels::Reduction reduction{
      .dtype = *checked_dtype, .op = *checked_op, .divisor = static_cast<int>(srcs.size())};
  const py::gil_scoped_release release;
  kernels::reduce_n(reduction, reinterpret_cast<void*>(dst), sources, count);
}

std::string listen_address(const std::string& interface, const std::string& node_host,
                           const std::string& scheduler_host) {
  NodeConfig config;
  config.interface = interface;
  config.node_host = node_host;
  config.scheduler_host = scheduler_host;
  std::vector<transport::Address> scheduler;
  if (interface.empty() && node_host.empty())
    scheduler = value_or_throw(transport::resolve(scheduler_host, 1));
  return value_or_throw(node::own_address(config, scheduler));
}

py::tuple network_interface(const std::string& address) {
  const auto interface = transport::interface_of_address(address);
  return py::make_tuple(interface ? *interface : "", node::nic_mbps(NodeConfig(), address));
}

}  // namespace

void bind_machine(py::module_& module) {
  using py::arg;
  py::class_<Slab>(module, "Memory", py::is_final(), py::buffer_protocol())
      .def(py::init<size_t>(), arg("nbytes"))
      .def_buffer([](Slab& slab) {
        const auto bytes = slab.bytes();
        return py::buffer_info(reinterpret_cast<uint8_t*>(bytes.data()),
                               static_cast<py::ssize_t>(bytes.size()));
      });
  module.def("viable_transports", &viable_transports);
  module.def("isa_levels", &isa_levels);
  module.def("reduce_n", &reduce_n, arg("dst_ptr"), arg("src_ptrs"), arg("count"), arg("dtype"), arg("op"));
  module.def("network_interface", &network_interface, arg("address"));
  module.def("listen_address", &listen_address, arg("interface"), arg("node_host"), arg("scheduler_host"));
}

}  // namespace byteps::bindings
