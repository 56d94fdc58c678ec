// The part of MXNet 1.9 that the engine's operations use, as its headers declare it. Declared here so that nothing of MXNet
// is needed to build; found at run time in the library that Python has loaded.
//
// mxnet/c_api.h has no functions for three things, which are therefore as in mxnet/engine.h and mxnet/ndarray.h of 1.9:
// how an operation says that it is complete, how errors travel, and arrays that oneDNN has put into a layout of its own.
// MXNet is retired, so that they will not change; byteps/mxnet/native.py refuses other releases.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <stdexcept>

namespace byteps::mxnet {

using NDArrayHandle =
    void*;  // an NDArray, whose first word points to its storage, as the one of shared_ptr does

// dmlc::Error has no members either. MXNet copies it.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// mxnet::engine::CallbackOnComplete. May be copied; to be called once, on any thread.
struct OnComplete {
  void (*callback)(void* engine, void* param, const Error* error);
  void* engine;
  void* param;

  void operator()(const Error* error = nullptr) const { callback(engine, param, error); }
};

// mxnet::Context.
struct Context {
  int device_type;
  int32_t device_id;
};
constexpr Context kCpu{1, 0};

// mxnet::FnProperty: which thread runs an operation.
//
// kDeleteVar: the one that pushes, if all arrays are ready; else the next one of the CPU's that is free, before all other
// operations that wait for it. So a gradient leaves when it is there, without another thread having to wake up.
constexpr int kReadyFirst = 5;
// kCPUPrioritized: one of a few threads of its own.
constexpr int kCpuPrioritized = 3;

struct Api {
  // nullptr if one of the functions is not in `library`, as dlopen() returns it.
  static const Api* find(void* library);

  int (*engine_push_async)(void (*run)(void* run_context, void* on_complete, void* param), void* param,
                           void (*deleter)(void* param), const Context* context, NDArrayHandle* reads,
                           int num_reads, NDArrayHandle* writes, int num_writes, const int* property,
                           int priority, const char* name, bool wait);
  int (*shallow_copy)(NDArrayHandle array, NDArrayHandle* copy);
  int (*free_array)(NDArrayHandle array);
  int (*get_data)(NDArrayHandle array, void** data);
  int (*get_shape)(NDArrayHandle array, int* num_dims, const int** dims);  // num_dims -1: unknown
  int (*get_dtype)(NDArrayHandle array, int* dtype);
  int (*get_storage_type)(NDArrayHandle array, int* storage_type);
  int (*get_context)(NDArrayHandle array, int* device_type, int* device_id);
  const char* (*last_error)();
  void (*to_default_layout)(void* storage);  // nullptr in a build without oneDNN: all arrays have that layout
};

}  // namespace byteps::mxnet
