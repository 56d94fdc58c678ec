// One CUDA device, as the program uses it: its primary context, and events in it.
#pragma once

#include <string>
#include <utility>
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
  friend class CurrentContext;

  const CudaDriver& driver_;
  const int ordinal_;
  const cuda::Context context_;
  std::string text_;
  Mutex mutex_;
  std::vector<cuda::Event> events_ BPS_GUARDED_BY(mutex_);
};

// Name and PCI address of each device that the process sees. Errors: as CudaDriver::installed().
Result<std::vector<std::pair<std::string, std::string>>> list_devices();

// Makes the device's context the calling thread's current one as long as this object exists.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaDevice& device) : cu_(device.cu()) {
    cu_.ctx_push_current(device.context_);
  }
  ~CurrentContext() {
    cuda::Context popped = nullptr;
    cu_.ctx_pop_current(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const cuda::Functions& cu_;
};

// As long as this object exists, no capture of a CUDA graph by another thread restricts the calls of
// this one. Without it, asking an event or registering memory would fail, and end that capture.
class BesideCaptures {
 public:
  explicit BesideCaptures(const CudaDevice& device) : cu_(device.cu()) {
    cu_.thread_exchange_capture_mode(&mode_);
  }
  ~BesideCaptures() { cu_.thread_exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const cuda::Functions& cu_;
  int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace byteps::device
