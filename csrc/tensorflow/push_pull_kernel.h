// The kernel of both operators: hands the input's memory to the core, and the output's, which is the same where
// TensorFlow lets an operator overwrite its input. No thread of TensorFlow waits for the result.
#pragma once

#include "c_api/c_api.h"

namespace byteps::tensorflow {

enum class Device { kCpu, kGpu };
constexpr Device kDevices[] = {Device::kCpu, Device::kGpu};
constexpr const char* name_of(Device device) { return device == Device::kCpu ? "CPU" : "GPU"; }

// Of operators with the attributes T, tensor_name, reduce_op, root_rank and priority (ops.cc), one input,
// anchors, and one output. Any thread runs them.
void register_kernel(const char* op_name, Device device);

// Before the first kernel runs.
void set_core(const BpsCApi* core);

}  // namespace byteps::tensorflow
