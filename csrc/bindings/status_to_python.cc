#include "bindings/status_to_python.h"

namespace byteps::bindings {

void throw_if_failed(const Status& status) {
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  if (status.is_ok()) return;
  const pybind11::object type =
      pybind11::module_::import("byteps.errors").attr(exception_of(static_cast<int>(status.code())));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw pybind11::error_already_set();
}

KeepWaiting keep_waiting_unless_signalled() {
  return [] {
    const pybind11::gil_scoped_acquire gil;
    return PyErr_CheckSignals() == 0;
  };
}

}  // namespace byteps::bindings
