#include "bindings/torch_tensor.h"

#include <utility>

#include "base/dtype.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

py::object call(py::handle object, const py::str& method) {
  PyObject* const result = PyObject_CallMethodNoArgs(object.ptr(), method.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

}  // namespace

py::str interned(const char* text) {
  PyObject* const name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(name);
}

TensorReader::TensorReader(py::tuple types, py::dict codes, py::object strided)
    : types_(std::move(types)),
      codes_(std::move(codes)),
      strided_(std::move(strided)),
      dtype_(interned("dtype")),
      layout_(interned("layout")),
      is_cpu_(interned("is_cpu")),
      is_contiguous_(interned("is_contiguous")),
      is_neg_(interned("is_neg")),
      numel_(interned("numel")),
      data_ptr_(interned("data_ptr")) {}

std::optional<HostMemory> TensorReader::read(py::handle tensor) const {
  bool is_plain = false;
  for (const py::handle type : types_) is_plain |= py::type::handle_of(tensor).is(type);
  if (!is_plain) return std::nullopt;
  const py::object dtype = attribute(tensor, dtype_);
  PyObject* const code = PyDict_GetItemWithError(codes_.ptr(), dtype.ptr());
  if (code == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (code == nullptr || !attribute(tensor, layout_).is(strided_)) return std::nullopt;
  if (attribute(tensor, is_cpu_).ptr() != Py_True) return std::nullopt;
  if (call(tensor, is_contiguous_).ptr() != Py_True || call(tensor, is_neg_).ptr() != Py_False) {
    return std::nullopt;
  }
  const int number = py::cast<int>(py::handle(code));
  const auto known = dtype_from(static_cast<uint8_t>(number));
  if (!known) return std::nullopt;
  const auto elements = py::cast<int64_t>(call(tensor, numel_));
  return HostMemory{.address = py::cast<uintptr_t>(call(tensor, data_ptr_)),
                    .bytes = static_cast<uint64_t>(elements) * size_of(*known),
                    .elements = elements,
                    .dtype = number};
}

}  // namespace byteps::bindings
