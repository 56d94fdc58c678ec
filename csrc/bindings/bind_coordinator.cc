#include <memory>
#include <string>

#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "elastic/coordinator_host.h"

namespace py = pybind11;

namespace byteps::bindings {

void bind_coordinator(py::module_& module) {
  using elastic::CoordinatorHost;
  using py::arg;
  py::class_<CoordinatorHost>(module, "Coordinator", py::is_final())
      .def(py::init([](const NodeConfig& config, uint32_t min_workers, uint32_t max_workers,
                       uint32_t initial_workers, double shortage_timeout_s, double gather_s) {
             return value_or_throw(
                 CoordinatorHost::create(config, {.min_workers = min_workers,
                                                  .max_workers = max_workers,
                                                  .initial_workers = initial_workers,
                                                  .shortage_timeout_us = seconds_to_us(shortage_timeout_s),
                                                  .gather_us = seconds_to_us(gather_s),
                                                  .version = {}}));
           }),
           arg("config"), arg("min_workers"), arg("max_workers"), arg("initial_workers"),
           arg("shortage_timeout_s"), arg("gather_s"))
      .def_property_readonly("port", [](const CoordinatorHost& host) { return host.address().port; })
      .def("counts",
           [](CoordinatorHost& host) {
             const auto counts = without_gil([&] { return host.counts(); });
             return py::make_tuple(counts.epoch, counts.active, counts.waiting);
           })
      .def("wait",
           [](CoordinatorHost& host) {
             throw_if_failed(without_gil([&] { return host.wait(keep_waiting_unless_signalled()); }));
           })
      .def("shutdown", &CoordinatorHost::shutdown, arg("text"));
}

}  // namespace byteps::bindings
