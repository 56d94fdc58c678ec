// One CUDA device, as the program uses it: its primary context, and events in it.
#pragma once

#include <string>
#include <vector>

#include "base/annotations.h"
#include "base/status.h"
#include "device/cuda_driver.h"

namespace byteps::device {

// Thread-safe. Exists until the process ends, and so does its context.
class CudaDevice {
 public:
  // The device with this number among those that the process sees. `driver` must exist as long.
  // kFailedPrecondition: the program does not use it, so it has no context, and none is made behind
  // the program's back.
  static Result<CudaDevice*> get(const CudaDriver& driver, int ordinal);

  const CudaDriver& driver() const { return driver_; }
  const cuda::Functions& cu() const { return driver_.functions(); }
  int ordinal() const { return ordinal_; }
  // "GPU 0 (NVIDIA H100 80GB HBM3)".
  const std::string& text() const { return text_; }
  // As CudaDriver::status, with the name of the device.
  Status status(std::string_view what, cuda::Code code) const;

  // Events without times, out of a pool.
  Result<cuda::Event> take_event();
  void give_back(cuda::Event event);

 private:
  CudaDevice(const CudaDriver& driver, int ordinal, cuda::Context context);
  friend class DeviceScope;

  const CudaDriver& driver_;
  const int ordinal_;
  const cuda::Context context_;
  std::string text_;
  Mutex mutex_;
  std::vector<cuda::Event> events_ BPS_GUARDED_BY(mutex_);
};

// For calls of CUDA on a thread of the program: as long as this object exists, the device's context
// is the thread's current one, and no capture of a CUDA graph by another thread restricts the calls.
// (Without that, asking an event would fail, and end that capture as well.)
class DeviceScope {
 public:
  explicit DeviceScope(const CudaDevice& device) : cu_(device.cu()) {
    cu_.ctx_push_current(device.context_);
    cu_.thread_exchange_capture_mode(&mode_);
  }
  ~DeviceScope() {
    cu_.thread_exchange_capture_mode(&mode_);
    cuda::Context popped = nullptr;
    cu_.ctx_pop_current(&popped);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const cuda::Functions& cu_;
  int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace byteps::device
