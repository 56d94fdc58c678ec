// The kernels of the operators (ops.cc), and what they share: the core's table of functions, types,
// devices, attributes and errors.
#pragma once

#include <atomic>
#include <iterator>
#include <string>

#include "c_api/c_api.h"
#include "tensorflow/tf_api.h"

namespace byteps::tensorflow {

// Set by Python (byteps/tensorflow/native.py) before the first kernel runs.
inline std::atomic<const BpsCApi*> core_table = nullptr;
inline const BpsCApi& core() { return *core_table.load(); }

// TensorFlow's types and their names in definitions of operators, for the core's dtypes.
struct TypeRow {
  DType dtype;
  TF_DataType type;
  const char* name;
};
inline constexpr TypeRow kTypes[] = {
    {DType::kFloat16, TF_HALF, "half"},   {DType::kBFloat16, TF_BFLOAT16, "bfloat16"},
    {DType::kFloat32, TF_FLOAT, "float"}, {DType::kFloat64, TF_DOUBLE, "double"},
    {DType::kInt8, TF_INT8, "int8"},      {DType::kUInt8, TF_UINT8, "uint8"},
    {DType::kInt32, TF_INT32, "int32"},   {DType::kInt64, TF_INT64, "int64"},
};
static_assert(std::size(kTypes) == std::size(kDTypes));

enum class Device { kCpu, kGpu };
constexpr Device kDevices[] = {Device::kCpu, Device::kGpu};
constexpr const char* name_of(Device device) { return device == Device::kCpu ? "CPU" : "GPU"; }

// Returns "" and sets `status` if there is no attribute of this name.
inline std::string string_attr(TF_OpKernelConstruction* construction, const char* attr, TF_Status* status) {
  int32_t unused = 0;
  int32_t length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, attr, &unused, &length, status);
  if (TF_GetCode(status) != TF_OK) return {};
  std::string value(static_cast<size_t>(length), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, attr, value.data(), value.size(), status);
  return value;
}

// A TF_Status that is deleted automatically.
class ScopedStatus {
 public:
  ScopedStatus() : status_(TF_NewStatus()) {}
  ~ScopedStatus() { TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;

  TF_Status* get() { return status_; }
  bool is_ok() const { return TF_GetCode(status_) == TF_OK; }

 private:
  TF_Status* status_;
};

// `code`: a StatusCode. A lost process becomes TF_UNKNOWN: TensorFlow replaces TF_UNAVAILABLE by
// TF_INTERNAL, and takes TF_ABORTED for a server that will come back.
inline TF_Code tf_code(int code) {
  switch (StatusCode{static_cast<uint8_t>(code)}) {
    case StatusCode::kOk: return TF_OK;
    case StatusCode::kInvalidArgument: return TF_INVALID_ARGUMENT;
    case StatusCode::kFailedPrecondition: return TF_FAILED_PRECONDITION;
    case StatusCode::kDeadlineExceeded: return TF_DEADLINE_EXCEEDED;
    case StatusCode::kUnavailable: return TF_UNKNOWN;
    case StatusCode::kAborted: return TF_ABORTED;
    case StatusCode::kDataLoss: return TF_DATA_LOSS;
    case StatusCode::kPermissionDenied: return TF_PERMISSION_DENIED;
    case StatusCode::kUnimplemented: return TF_UNIMPLEMENTED;
    case StatusCode::kDeviceLost:
    case StatusCode::kInternal: break;
  }
  return TF_INTERNAL;
}

// The kernel of both push_pull operators: passes the memory of input and output to the core. They
// are the same memory if TensorFlow lets the operator overwrite its input. No thread of TensorFlow
// waits for the result. The first anchor is the step of the push_pull; 0 or no anchor: no step.
// Executions may run on any thread. The operator has the attributes T, tensor_name, reduce_op,
// root_rank, priority and anchors (ops.cc), one input, that number of anchors, and one output.
void register_push_pull_kernel(const char* op_name, Device device);

// The kernel of anchors, for an operator with the attribute `label` and one output, a scalar int64:
// counts the executions with the same label in the job; 0 if the label is empty.
void register_anchor_kernel(const char* op_name, Device device);

}  // namespace byteps::tensorflow
