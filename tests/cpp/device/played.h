// The played CUDA driver (tests/played_cuda/), for tests.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_device.h"
#include "device/transfer.h"

namespace byteps::device {

inline const CudaDriver& played_driver() {
  static const auto driver = std::move(*CudaDriver::load(BYTEPS_PLAYED_CUDA));
  return *driver;
}

template <typename Function>
Function* played_function(const char* name) {
  static void* const library = ::dlopen(BYTEPS_PLAYED_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// The part of a training program that uses the device: its context, a stream, and memory.
class PlayedProgram {
 public:
  PlayedProgram() : cu_(played_driver().functions()) {
    cu_.primary_ctx_retain(&context_, 0);
    cu_.ctx_push_current(context_);
    cu_.stream_create(&stream_, 0);
  }
  ~PlayedProgram() {
    if (cu_.stream_synchronize(stream_) != cuda::kSuccess) {
      played_function<void(cuda::Stream)>("played_cuda_wait_for_running")(stream_);
    }
    for (const cuda::Address address : allocated_) cu_.mem_free(address);
    cu_.stream_destroy(stream_);
    cu_.ctx_pop_current(&context_);
  }
  PlayedProgram(const PlayedProgram&) = delete;
  PlayedProgram& operator=(const PlayedProgram&) = delete;

  cuda::Stream stream() const { return stream_; }
  // Played memory of the device is memory of the host.
  template <typename T>
  T* allocate(size_t count) {
    cuda::Address address = 0;
    cu_.mem_alloc(&address, count * sizeof(T));
    allocated_.push_back(address);
    return reinterpret_cast<T*>(address);
  }
  // Runs `kernel` on the stream, in place of a kernel of the device.
  void launch(std::function<void()> kernel) {
    kernels_.push_back(std::move(kernel));  // kept here, since after an error it does not run
    cu_.launch_host_func(
        stream_, [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); },
        &kernels_.back());
  }
  cuda::Code synchronize() { return cu_.stream_synchronize(stream_); }
  std::shared_ptr<Transfer> begin() {
    return *Transfer::begin(**CudaDevice::get(played_driver(), 0), stream_);
  }

 private:
  const cuda::Functions& cu_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::vector<cuda::Address> allocated_;
  std::deque<std::function<void()>> kernels_;
};

}  // namespace byteps::device
