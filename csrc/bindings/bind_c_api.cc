#include "base/unique_fd.h"
#include "bindings/bindings.h"
#include "c_api/current_job.h"

namespace py = pybind11;

namespace byteps::bindings {

void bind_c_api(py::module_& module) {
  using c_api::AloneMetrics;
  using py::arg;
  module.attr("C_API") = reinterpret_cast<uintptr_t>(&c_api::table());
  py::class_<AloneMetrics, std::shared_ptr<AloneMetrics>>(module, "AloneMetrics", py::is_final())
      .def_property_readonly("push_pulls", [](const AloneMetrics& m) { return m.push_pulls.load(); })
      .def_property_readonly("push_pull_bytes",
                             [](const AloneMetrics& m) { return m.push_pull_bytes.load(); });
  module.def("enter_c_job_alone", &c_api::enter_job_alone);
  module.def("leave_c_job", &c_api::leave_job, arg("why"));
  module.def("abandon_c_job", &c_api::abandon_job, arg("why"));
  module.def("note_descriptor", &note_descriptor, arg("fd"));
  module.def("close_descriptors_in_child", &close_descriptors_in_child);
}

}  // namespace byteps::bindings
