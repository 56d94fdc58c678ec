// The part of TensorFlow's C API that the operators use, as declared in its headers
// tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h since 2.15 at the latest. Declared here so that
// the build needs nothing of TensorFlow; defined in the libraries of the TensorFlow that loads this
// one.
//
// The C API is stable, with one exception that it has no function for: TF_AsyncOpKernelDoneCallback
// points to a std::function<void()> that is destroyed when the compute function returns
// (kernels.cc, in all releases so far).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <functional>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;

enum TF_Code : int {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_PERMISSION_DENIED = 7,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13,
  TF_DATA_LOSS = 15,
};

enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BFLOAT16 = 14,
  TF_HALF = 19,
};

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code, const char* message);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

void TF_DeleteTensor(TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int index);
size_t TF_TensorByteSize(const TF_Tensor*);
void* TF_TensorData(const TF_Tensor*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* spec);
// Makes the operator stateful, whatever the argument.
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*, TF_Status*));
TF_ShapeHandle* TF_NewShapeHandle();
void TF_DeleteShapeHandle(TF_ShapeHandle*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);

using TF_AsyncOpKernelDoneCallback = std::function<void()>;
TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char* op_name, const char* device_name, void* (*create)(TF_OpKernelConstruction*),
    void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback* done), void (*destroy)(void*));
TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name, const char* device_name,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));
void TF_KernelBuilder_HostMemory(TF_KernelBuilder*, const char* argument);
void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder*, TF_Status*);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* attr, int32_t* list_size,
                                         int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* attr, char* value,
                                           size_t max_length, TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*, const char* attr, int64_t* value,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction*, const char* attr, TF_DataType* value,
                                         TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims, int num_dims,
                             size_t bytes, TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int* candidates, int num_candidates,
                                           int output, const int64_t* dims, int num_dims, int* forwarded,
                                           TF_Status*);

}  // extern "C"
