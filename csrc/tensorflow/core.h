// The core's table of functions, set by Python (byteps/tensorflow/native.py), and the device types
// of the kernels.
#pragma once

#include <atomic>

#include "c_api/c_api.h"

namespace byteps::tensorflow {

inline std::atomic<const BpsCApi*> core_table = nullptr;  // set before the first kernel runs
inline const BpsCApi& core() { return *core_table.load(); }

enum class Device { kCpu, kGpu };
constexpr Device kDevices[] = {Device::kCpu, Device::kGpu};
constexpr const char* name_of(Device device) { return device == Device::kCpu ? "CPU" : "GPU"; }

}  // namespace byteps::tensorflow
