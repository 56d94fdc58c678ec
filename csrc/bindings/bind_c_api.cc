#include "base/unique_fd.h"
#include "bindings/bindings.h"
#include "c_api/current_job.h"

namespace py = pybind11;

namespace byteps::bindings {

void bind_c_api(py::module_& module) {
  using py::arg;
  module.attr("C_API") = reinterpret_cast<uintptr_t>(&c_api::table());
  module.def("enter_c_job_alone", [] {
    return py::cpp_function([metrics = c_api::enter_job_alone()] { return to_dict(*metrics); });
  });
  module.def("leave_c_job", &c_api::leave_job, arg("why"));
  module.def("abandon_c_job", &c_api::abandon_job, arg("why"));
  module.def("note_descriptor", &note_descriptor, arg("fd"));
  module.def("close_descriptors_in_child", &close_descriptors_in_child);
}

}  // namespace byteps::bindings
