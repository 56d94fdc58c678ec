#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace byteps::device {
namespace {

std::atomic<bool> is_forked_child = false;

void watch_forks() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { is_forked_child = true; });
}

}  // namespace

bool CudaDriver::is_usable_here() { return !is_forked_child; }

Result<std::unique_ptr<const CudaDriver>> CudaDriver::load(const std::string& file) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return unimplemented("CUDA: " + std::string(::dlerror()) +
                         ": expected NVIDIA's driver to be installed, and visible in this container");
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver);
  std::string missing;
  const auto find = [&]<typename Function>(const char* symbol, Function** into) {
    *into = reinterpret_cast<Function*>(::dlsym(handle, symbol));
    if (*into == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
  };
#define BPS_FIND(symbol, name, arguments) find(#symbol, &driver->functions_.name);
  BPS_CUDA_FUNCTIONS(BPS_FIND)
#undef BPS_FIND
  if (!missing.empty())
    return unimplemented("CUDA: " + file + " has no " + missing + ": expected NVIDIA's driver 460 or newer");
  watch_forks();
  BPS_RETURN_IF_ERROR(driver->status("CUDA: cuInit", driver->functions_.init(0)));
  BPS_RETURN_IF_ERROR(
      driver->status("CUDA: cuDriverGetVersion", driver->functions_.driver_get_version(&driver->version_)));
  return Result<std::unique_ptr<const CudaDriver>>(std::move(driver));
}

Result<const CudaDriver*> CudaDriver::installed() {
  static const Result<std::unique_ptr<const CudaDriver>> loaded = load("libcuda.so.1");
  if (!loaded) return loaded.status();
  return loaded->get();
}

Status CudaDriver::status(std::string_view what, cuda::Code code) const {
  if (code == cuda::kSuccess) return Status::ok();
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.get_error_name(code, &name);
  functions_.get_error_string(code, &text);
  return device_lost(std::string(what) + ": " + (name != nullptr ? name : "unknown CUDA error") + " (" +
                     std::to_string(code) + ")" + (text != nullptr ? ": " + std::string(text) : ""));
}

}  // namespace byteps::device
