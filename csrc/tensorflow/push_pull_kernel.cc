#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/kernels.h"

namespace byteps::tensorflow {
namespace {

struct Kernel {
  std::string name;
  uint8_t dtype;
  uint8_t op;
  uint32_t root;
  int32_t priority;
  bool has_anchor;
};

// One execution, from compute() to on_done().
struct Execution {
  TF_OpKernelContext* context;
  std::function<void()> done;
};

// Returns the core's code; the operator's definition allows no other types.
uint8_t dtype_code(TF_DataType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return static_cast<uint8_t>(row.dtype);
  }
  return 0;
}

// Returns nullptr and fails the construction if an attribute is missing.
void* create(TF_OpKernelConstruction* construction) {
  ScopedStatus status;
  TF_DataType type{};
  std::string name = string_attr(construction, "tensor_name", status.get());
  if (status.is_ok()) TF_OpKernelConstruction_GetAttrType(construction, "T", &type, status.get());
  const auto number = [&](const char* attr) {
    int64_t value = 0;
    if (status.is_ok()) TF_OpKernelConstruction_GetAttrInt64(construction, attr, &value, status.get());
    return value;
  };
  const int64_t op = number("reduce_op");
  const int64_t root = number("root_rank");
  const int64_t priority = number("priority");
  const int64_t anchors = number("anchors");
  if (!status.is_ok()) {
    TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return new Kernel{.name = std::move(name),
                    .dtype = dtype_code(type),
                    .op = static_cast<uint8_t>(op),
                    .root = static_cast<uint32_t>(root),
                    .priority = static_cast<int32_t>(priority),
                    .has_anchor = anchors > 0};
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void on_done(void* argument, int code, const char* message) {
  const std::unique_ptr<Execution> execution(static_cast<Execution*>(argument));
  if (code != 0) {
    ScopedStatus status;
    TF_SetStatus(status.get(), tf_code(code), message);
    TF_OpKernelContext_Failure(execution->context, status.get());
  }
  execution->done();
}

// TensorFlow keeps both tensors alive until done().
struct Memory {
  const void* input = nullptr;
  void* output = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> dims;
};

Memory memory_of(TF_OpKernelContext* context, TF_Status* status) {
  TF_Tensor* input = nullptr;
  TF_GetInput(context, 0, &input, status);
  if (TF_GetCode(status) != TF_OK) return {};
  Memory memory{
      .input = TF_TensorData(input), .output = nullptr, .bytes = TF_TensorByteSize(input), .dims = {}};
  for (int i = 0; i < TF_NumDims(input); ++i) memory.dims.push_back(TF_Dim(input, i));
  // A second reference to it would keep TensorFlow from letting us overwrite it.
  TF_DeleteTensor(input);
  const int candidate = 0;
  int forwarded = -1;
  TF_Tensor* output =
      TF_ForwardInputOrAllocateOutput(context, &candidate, 1, 0, memory.dims.data(),
                                      static_cast<int>(memory.dims.size()), &forwarded, status);
  if (TF_GetCode(status) != TF_OK) return {};
  memory.output = TF_TensorData(output);
  TF_DeleteTensor(output);
  return memory;
}

uint64_t step_of(const Kernel& kernel, TF_OpKernelContext* context, TF_Status* status) {
  TF_Tensor* anchor = nullptr;
  if (kernel.has_anchor) TF_GetInput(context, 1, &anchor, status);
  if (anchor == nullptr) return 0;
  const int64_t step = *static_cast<const int64_t*>(TF_TensorData(anchor));
  TF_DeleteTensor(anchor);
  return static_cast<uint64_t>(step);
}

constexpr int64_t kScalar = 1;  // something to point to for a shape without dimensions

void compute(void* argument, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto& kernel = *static_cast<const Kernel*>(argument);
  auto execution = std::make_unique<Execution>(Execution{context, std::move(*done)});
  ScopedStatus status;
  const std::string& name = kernel.name;
  const uint64_t step = step_of(kernel, context, status.get());
  const Memory memory = status.is_ok() ? memory_of(context, status.get()) : Memory();
  if (!status.is_ok()) {
    core().refuse(name.data(), name.size(), step, TF_Message(status.get()));
    TF_OpKernelContext_Failure(context, status.get());
    return execution->done();
  }
  const BpsPushPull request{.name = name.data(),
                            .name_bytes = name.size(),
                            .bytes = memory.bytes,
                            .input = memory.input,
                            .output = memory.output,
                            .dtype = kernel.dtype,
                            .op = kernel.op,
                            .root = kernel.root,
                            .priority = kernel.priority,
                            .staleness = 0,
                            .dims = memory.dims.empty() ? &kScalar : memory.dims.data(),
                            .num_dims = memory.dims.size(),
                            .step = step,
                            .on_done = &on_done,
                            .context = execution.release()};
  core().push_pull(&request);
}

}  // namespace

void register_push_pull_kernel(const char* op_name, Device device) {
  ScopedStatus status;
  TF_KernelBuilder* builder = TF_NewAsyncKernelBuilder(op_name, name_of(device), &create, &compute, &destroy);
  if (device == Device::kGpu) {
    // TensorFlow then copies from and to the GPU. On CPUs host memory would keep outputs from
    // reusing their inputs' memory.
    TF_KernelBuilder_HostMemory(builder, "tensor");
    TF_KernelBuilder_HostMemory(builder, "anchor");
    TF_KernelBuilder_HostMemory(builder, "reduced");
  }
  TF_RegisterKernelBuilder(op_name, builder, status.get());
}

}  // namespace byteps::tensorflow
