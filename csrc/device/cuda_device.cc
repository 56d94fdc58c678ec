#include "device/cuda_device.h"

#include <array>
#include <map>
#include <memory>
#include <utility>

namespace byteps::device {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::pair<const CudaDriver*, int>, std::unique_ptr<CudaDevice>> devices BPS_GUARDED_BY(mutex);
};

Registry& registry() {
  // Never destroyed: push_pulls may be in flight when static objects are.
  static Registry* const instance = new Registry;
  return *instance;
}

std::string name_of(const CudaDriver& driver, int ordinal) {
  std::array<char, 96> name{};
  driver.functions().device_get_name(name.data(), static_cast<int>(name.size()) - 1, ordinal);
  return name.data();
}

std::string describe(const CudaDriver& driver, int ordinal) {
  const std::string name = name_of(driver, ordinal);
  return "GPU " + std::to_string(ordinal) + (name.empty() ? "" : " (" + name + ")");
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> list_devices() {
  const auto driver = CudaDriver::installed();
  if (!driver) return driver.status();
  const cuda::Functions& cu = (*driver)->functions();
  int count = 0;
  BPS_RETURN_IF_ERROR((*driver)->status("CUDA: cuDeviceGetCount", cu.device_get_count(&count)));
  std::vector<std::pair<std::string, std::string>> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::array<char, 32> pci{};
    cu.device_get_pci_bus_id(pci.data(), static_cast<int>(pci.size()) - 1, ordinal);
    devices.emplace_back(name_of(**driver, ordinal), pci.data());
  }
  return devices;
}

CudaDevice::CudaDevice(const CudaDriver& driver, int ordinal, cuda::Context context)
    : driver_(driver), ordinal_(ordinal), context_(context), text_(describe(driver, ordinal)) {}

Result<CudaDevice*> CudaDevice::get(const CudaDriver& driver, int ordinal) {
  if (!CudaDriver::is_usable_here()) {
    return failed_precondition(
        "CUDA cannot be used in a process that was forked from one that uses it: start it with spawn");
  }
  Registry& all = registry();
  MutexLock lock(all.mutex);
  std::unique_ptr<CudaDevice>& device = all.devices[{&driver, ordinal}];
  if (device) return device.get();
  const cuda::Functions& cu = driver.functions();
  unsigned flags = 0;
  int is_active = 0;
  const std::string what = "GPU " + std::to_string(ordinal);
  BPS_RETURN_IF_ERROR(driver.status(what + ": cuDevicePrimaryCtxGetState",
                                    cu.primary_ctx_get_state(ordinal, &flags, &is_active)));
  if (is_active == 0) {
    return failed_precondition(what + ": this process has not used it yet: expected a tensor in its memory");
  }
  cuda::Context context = nullptr;
  BPS_RETURN_IF_ERROR(
      driver.status(what + ": cuDevicePrimaryCtxRetain", cu.primary_ctx_retain(&context, ordinal)));
  device.reset(new CudaDevice(driver, ordinal, context));
  return device.get();
}

Status CudaDevice::status(std::string_view what, cuda::Code code) const {
  if (code == cuda::kSuccess) return Status::ok();
  return driver_.status(text_ + ": " + std::string(what), code);
}

Result<cuda::Event> CudaDevice::take_event() {
  {
    MutexLock lock(mutex_);
    if (!events_.empty()) {
      const cuda::Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  const CurrentContext current(*this);
  cuda::Event event = nullptr;
  BPS_RETURN_IF_ERROR(status("cuEventCreate", cu().event_create(&event, cuda::kEventDisableTiming)));
  return event;
}

void CudaDevice::give_back(cuda::Event event) {
  if (event == nullptr) return;
  MutexLock lock(mutex_);
  events_.push_back(event);
}

}  // namespace byteps::device
