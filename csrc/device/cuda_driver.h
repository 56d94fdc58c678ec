// The CUDA driver of this machine, found at run time: no toolkit to build, nothing linked, and
// nothing happens where there is none.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "device/cuda_abi.h"

namespace byteps::device {

// Thread-safe, and constant after it is loaded. A library is never unloaded.
class CudaDriver {
 public:
  // libcuda.so.1, loaded and initialized at the first call. kUnimplemented: there is none, or it is
  // too old; kDeviceLost: it does not work, for example because there is no device.
  static Result<const CudaDriver*> installed();
  // As above, of this file.
  static Result<std::unique_ptr<const CudaDriver>> load(const std::string& file);

  const cuda::Functions& functions() const { return functions_; }
  // As CUDA numbers it: 12040 is version 12.4.
  int version() const { return version_; }
  // ok for kSuccess; otherwise kDeviceLost: "<what>: CUDA_ERROR_… (700): <CUDA's text>".
  Status status(std::string_view what, cuda::Code code) const;
  // False in a child that was forked after the driver was loaded: CUDA does not work there, and no
  // function may be called.
  static bool is_usable_here();

 private:
  CudaDriver() = default;
  cuda::Functions functions_{};
  int version_ = 0;
};

}  // namespace byteps::device
