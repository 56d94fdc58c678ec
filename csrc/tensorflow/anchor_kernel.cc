#include <memory>
#include <string>

#include "tensorflow/kernels.h"

namespace byteps::tensorflow {
namespace {

// The state of a kernel is its label.
void* create(TF_OpKernelConstruction* construction) {
  ScopedStatus status;
  auto label = std::make_unique<std::string>(string_attr(construction, "label", status.get()));
  if (status.is_ok()) return label.release();
  TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void compute(void* argument, TF_OpKernelContext* context) {
  const std::string& label = *static_cast<const std::string*>(argument);
  ScopedStatus status;
  TF_Tensor* output = TF_AllocateOutput(context, 0, TF_INT64, nullptr, 0, sizeof(int64_t), status.get());
  if (!status.is_ok()) return TF_OpKernelContext_Failure(context, status.get());
  const uint64_t step = label.empty() ? 0 : core().next_step(label.data(), label.size());
  *static_cast<int64_t*>(TF_TensorData(output)) = static_cast<int64_t>(step);
  TF_DeleteTensor(output);
}

void destroy(void* label) { delete static_cast<std::string*>(label); }

}  // namespace

void register_anchor_kernel(const char* op_name, Device device) {
  ScopedStatus status;
  TF_KernelBuilder* builder = TF_NewKernelBuilder(op_name, name_of(device), &create, &compute, &destroy);
  if (device == Device::kGpu) TF_KernelBuilder_HostMemory(builder, "anchor");
  TF_RegisterKernelBuilder(op_name, builder, status.get());
}

}  // namespace byteps::tensorflow
