// The operators, which TensorFlow registers when it loads this library:
//
//   BytepsPushPull    stateless: TensorFlow runs it as soon as its input is ready, in any order
//                     with others, and removes it if its result is unused. If all its inputs were
//                     constants, TensorFlow would run it only once, while optimizing the graph:
//                     hence the anchor.
//   BytepsCollective  the same, but stateful: every call in a program is executed, in its order.
//   BytepsAnchor      stateful: a number that TensorFlow assumes to change with each call of a
//                     function. With a label it counts the executions with that label in the job,
//                     which push_pulls use as their step.
//   BytepsKeep        stateful, and does nothing: it keeps its inputs from being removed.
//
// byteps/tensorflow/native.py loads this library and passes the core's table of functions to it.
#include <string>

#include "tensorflow/kernels.h"

namespace byteps::tensorflow {
namespace {

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

std::string types() {
  std::string names;
  for (const TypeRow& row : kTypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

void register_op(const char* name, bool is_stateful) {
  ScopedStatus status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, ("T: {" + types() + "}").c_str());
  TF_OpDefinitionBuilderAddAttr(op, "tensor_name: string");
  TF_OpDefinitionBuilderAddAttr(op, "reduce_op: int");
  TF_OpDefinitionBuilderAddAttr(op, "root_rank: int = 0");
  TF_OpDefinitionBuilderAddAttr(op, "priority: int = 0");
  TF_OpDefinitionBuilderAddAttr(op, "anchors: int >= 0");
  TF_OpDefinitionBuilderAddInput(op, "tensor: T");
  // None if graphs are not optimized.
  TF_OpDefinitionBuilderAddInput(op, "anchor: anchors * int64");
  TF_OpDefinitionBuilderAddOutput(op, "reduced: T");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, &same_shape);
  if (is_stateful) TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_RegisterOpDefinition(op, status.get());
  for (const Device device : kDevices) register_push_pull_kernel(name, device);
}

void register_anchor(const char* name) {
  ScopedStatus status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, "label: string = ''");
  TF_OpDefinitionBuilderAddOutput(op, "anchor: int64");
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, [](TF_ShapeInferenceContext* context, TF_Status* s) {
    TF_ShapeHandle* scalar = TF_ShapeInferenceContextScalar(context);
    TF_ShapeInferenceContextSetOutput(context, 0, scalar, s);
    TF_DeleteShapeHandle(scalar);
  });
  TF_RegisterOpDefinition(op, status.get());
  for (const Device device : kDevices) register_anchor_kernel(name, device);
}

void register_keep(const char* name) {
  ScopedStatus status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, "T: type");
  TF_OpDefinitionBuilderAddInput(op, "tensor: T");
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_RegisterOpDefinition(op, status.get());
  for (const Device device : kDevices) {
    TF_KernelBuilder* builder =
        TF_NewKernelBuilder(name, name_of(device), nullptr, [](void*, TF_OpKernelContext*) {}, nullptr);
    TF_RegisterKernelBuilder(name, builder, status.get());
  }
}

[[maybe_unused]] const bool registered = [] {
  register_op("BytepsPushPull", false);
  register_op("BytepsCollective", true);
  register_anchor("BytepsAnchor");
  register_keep("BytepsKeep");
  return true;
}();

}  // namespace
}  // namespace byteps::tensorflow

// The TF_Code of errors with a StatusCode.
extern "C" __attribute__((visibility("default"))) int bps_tensorflow_code(int code) {
  return byteps::tensorflow::tf_code(code);
}

// Returns 0, or the table version that this library requires.
extern "C" __attribute__((visibility("default"))) uint32_t bps_tensorflow_set_core(const BpsCApi* core) {
  if (core->version != BPS_C_API_VERSION) return BPS_C_API_VERSION;
  byteps::tensorflow::core_table = core;
  return 0;
}
