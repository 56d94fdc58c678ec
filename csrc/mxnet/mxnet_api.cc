#include "mxnet/mxnet_api.h"

#include <dlfcn.h>

namespace byteps::mxnet {
namespace {

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Api* Api::find(void* library) {
  static Api api;
  const bool found = look_up(library, "MXEnginePushAsyncND", api.engine_push_async) &&
                     look_up(library, "MXShallowCopyNDArray", api.shallow_copy) &&
                     look_up(library, "MXNDArrayFree", api.free_array) &&
                     look_up(library, "MXNDArrayGetData", api.get_data) &&
                     look_up(library, "MXNDArrayGetShapeEx", api.get_shape) &&
                     look_up(library, "MXNDArrayGetDType", api.get_dtype) &&
                     look_up(library, "MXNDArrayGetStorageType", api.get_storage_type) &&
                     look_up(library, "MXNDArrayGetContext", api.get_context) &&
                     look_up(library, "MXGetLastError", api.last_error);
  // mxnet::NDArray::Chunk::Reorder2Default()
  look_up(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", api.to_default_layout);
  return found ? &api : nullptr;
}

}  // namespace byteps::mxnet
