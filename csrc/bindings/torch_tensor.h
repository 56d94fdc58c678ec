// Tensors of torch, read by their attributes in Python: the core is built without torch.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

namespace byteps::bindings {

struct HostMemory {
  uintptr_t address;
  uint64_t bytes;
  int64_t elements;
  int dtype;  // code
};

// Requires the GIL. Errors are those that Python raises.
class TensorReader {
 public:
  // `types`: of plain tensors. `codes`: of torch's dtypes. `strided`: torch's layout.
  TensorReader(pybind11::tuple types, pybind11::dict codes, pybind11::object strided);
  // Returns the memory of a plain tensor that is row-major and in host memory, nullopt for others.
  std::optional<HostMemory> read(pybind11::handle tensor) const;

 private:
  const pybind11::tuple types_;
  const pybind11::dict codes_;
  const pybind11::object strided_;
  const pybind11::str dtype_, layout_, is_cpu_, is_contiguous_, is_neg_, numel_, data_ptr_;
};

// One object of each name, so that Python finds attributes by comparing pointers.
pybind11::str interned(const char* text);
// The attribute of this name.
inline pybind11::object attribute(pybind11::handle object, const pybind11::str& name) {
  return pybind11::getattr(object, name);
}

}  // namespace byteps::bindings
