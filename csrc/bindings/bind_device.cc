#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "device/cuda_device.h"
#include "device/transfer.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

using device::CudaDevice;
using device::CudaDriver;
using device::Transfer;

device::cuda::Stream stream_of(uintptr_t stream) { return reinterpret_cast<device::cuda::Stream>(stream); }

}  // namespace

Result<std::shared_ptr<Transfer>> begin_transfer(int ordinal, uintptr_t stream) {
  const auto driver = CudaDriver::installed();
  if (!driver) return driver.status();
  const auto device = CudaDevice::get(**driver, ordinal);
  if (!device) return device.status();
  return Transfer::begin(**device, stream_of(stream));
}

void bind_device(py::module_& module) {
  using py::arg;
  py::class_<Transfer, std::shared_ptr<Transfer>>(module, "Transfer", py::is_final())
      // Keeps the GIL: it is short and never waits.
      .def(py::init(
               [](int ordinal, uintptr_t stream) { return value_or_throw(begin_transfer(ordinal, stream)); }),
           arg("ordinal"), arg("stream"))
      .def(
          "order_before",
          [](Transfer& transfer, uintptr_t stream) {
            throw_if_failed(transfer.order_before(stream_of(stream)));
          },
          arg("stream"))
      .def(
          "copy",
          [](Transfer& transfer, uintptr_t to, uintptr_t from, size_t nbytes) {
            throw_if_failed(transfer.copy(to, from, nbytes));
          },
          arg("output_ptr"), arg("input_ptr"), arg("nbytes"))
      .def("is_complete", &Transfer::is_complete);
  module.def("cuda_devices", [] { return value_or_throw(device::list_devices()); });
  module.def("cuda_version", [] { return value_or_throw(CudaDriver::installed())->version(); });
}

}  // namespace byteps::bindings
