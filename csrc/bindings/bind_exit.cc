// Who makes a SystemExit, and so may end the program. Python tells nobody: sys.excepthook is not called for it, and
// sys.exit is only one of the ways to raise one.
#include <utility>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

initproc make = nullptr;       // SystemExit's own
PyObject* listener = nullptr;  // null: none

int make_and_tell(PyObject* self, PyObject* args, PyObject* kwargs) {
  const int result = make(self, args, kwargs);
  if (result != 0 || listener == nullptr) return result;
  PyObject* const answer = PyObject_CallFunctionObjArgs(listener, self, nullptr);
  if (answer == nullptr) PyErr_WriteUnraisable(listener);
  Py_XDECREF(answer);
  return 0;
}

void tell_of_system_exits(const py::object& to) {
  auto* const type = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit);
  if (make == nullptr) make = std::exchange(type->tp_init, &make_and_tell);
  Py_XDECREF(std::exchange(listener, to.is_none() ? nullptr : to.inc_ref().ptr()));
}

}  // namespace

void bind_exit(py::module_& module) {
  module.def("tell_of_system_exits", &tell_of_system_exits, py::arg("listener").none(true));
}

}  // namespace byteps::bindings
