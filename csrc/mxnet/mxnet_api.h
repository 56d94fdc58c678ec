// The part of MXNet 1.9 that the engine's operations use, as its headers declare it. Declared here
// so that the build needs nothing of MXNet; found at run time in the library that Python has
// loaded.
//
// mxnet/c_api.h has no functions for three things, which are declared as in mxnet/engine.h and
// mxnet/ndarray.h of 1.9: completion of an operation, propagation of errors, and arrays in a layout
// of oneDNN. MXNet is retired, so they will not change; byteps/mxnet/native.py refuses other
// releases.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <stdexcept>

namespace byteps::mxnet {

// An NDArray. Its first word points to its storage, as in shared_ptr.
using NDArrayHandle = void*;

// dmlc::Error has no members either. MXNet copies it.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// mxnet::engine::CallbackOnComplete. May be copied; call it once, on any thread.
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

// mxnet::FnProperty: the thread that runs an operation.
//
// kDeleteVar: the pushing thread if all arrays are ready; else the next free CPU thread, before all
// other waiting operations. So a gradient is sent as soon as it is ready, without waking another
// thread.
constexpr int kReadyFirst = 5;
// kCPUPrioritized: a few dedicated threads.
constexpr int kCpuPrioritized = 3;

struct Api {
  // nullptr if a function is missing in `library`, as returned by dlopen().
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
  // nullptr in a build without oneDNN: all arrays have the default layout.
  void (*to_default_layout)(void* storage);
};

}  // namespace byteps::mxnet
