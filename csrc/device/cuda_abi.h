// The part of the CUDA driver's binary interface that the core uses. Declared here so that no
// toolkit is needed to build; cuda_driver.h finds the functions at run time.
//
// Values and types are those of CUDA 11.2 and later, in which the driver promises to keep them.
// tests/cpp/device/cuda_abi_check.cc compares them with the real header where there is one
// (tools/gpu_slot.py). Source: the manual of the CUDA driver API.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps::device::cuda {

using Code = int;  // CUresult
enum : Code {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorDeinitialized = 4,
  kErrorInvalidDevice = 101,
  kErrorInvalidContext = 201,
  kErrorInvalidHandle = 400,
  kErrorNotReady = 600,
  kErrorIllegalAddress = 700,
  kErrorHostMemoryAlreadyRegistered = 712,
  kErrorStreamCaptureUnsupported = 900,
};

using Ordinal = int;                 // CUdevice
using Address = unsigned long long;  // CUdeviceptr
struct ContextObject;
struct StreamObject;
struct EventObject;
using Context = ContextObject*;
using Stream = StreamObject*;  // null: the legacy default stream of the current context
using Event = EventObject*;
using HostFunction = void (*)(void*);

enum : unsigned {
  kStreamNonBlocking = 1,  // not ordered with the legacy default stream
  kEventDisableTiming = 2,
  kHostRegisterPortable = 1,  // pinned for all contexts
};
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureRelaxed = 2 };

// Name in the library, name here, arguments; all return a Code.
#define BPS_CUDA_FUNCTIONS(X)                                                                          \
  X(cuInit, init, (unsigned flags))                                                                    \
  X(cuDriverGetVersion, driver_get_version, (int* version))                                            \
  X(cuGetErrorName, get_error_name, (Code code, const char** name))                                    \
  X(cuGetErrorString, get_error_string, (Code code, const char** text))                                \
  X(cuDeviceGetCount, device_get_count, (int* count))                                                  \
  X(cuDeviceGetName, device_get_name, (char* name, int capacity, Ordinal device))                      \
  X(cuDeviceGetPCIBusId, device_get_pci_bus_id, (char* id, int capacity, Ordinal device))              \
  X(cuDevicePrimaryCtxGetState, primary_ctx_get_state, (Ordinal device, unsigned* flags, int* active)) \
  X(cuDevicePrimaryCtxRetain, primary_ctx_retain, (Context * context, Ordinal device))                 \
  X(cuCtxPushCurrent_v2, ctx_push_current, (Context context))                                          \
  X(cuCtxPopCurrent_v2, ctx_pop_current, (Context * context))                                          \
  X(cuStreamCreate, stream_create, (Stream * stream, unsigned flags))                                  \
  X(cuStreamDestroy_v2, stream_destroy, (Stream stream))                                               \
  X(cuStreamSynchronize, stream_synchronize, (Stream stream))                                          \
  X(cuStreamWaitEvent, stream_wait_event, (Stream stream, Event event, unsigned flags))                \
  X(cuStreamIsCapturing, stream_is_capturing, (Stream stream, int* status))                            \
  X(cuThreadExchangeStreamCaptureMode, thread_exchange_capture_mode, (int* mode))                      \
  X(cuEventCreate, event_create, (Event * event, unsigned flags))                                      \
  X(cuEventDestroy_v2, event_destroy, (Event event))                                                   \
  X(cuEventRecord, event_record, (Event event, Stream stream))                                         \
  X(cuEventQuery, event_query, (Event event))                                                          \
  X(cuEventSynchronize, event_synchronize, (Event event))                                              \
  X(cuLaunchHostFunc, launch_host_func, (Stream stream, HostFunction function, void* argument))        \
  X(cuMemAlloc_v2, mem_alloc, (Address * address, size_t bytes))                                       \
  X(cuMemFree_v2, mem_free, (Address address))                                                         \
  X(cuMemHostRegister_v2, mem_host_register, (void* address, size_t bytes, unsigned flags))            \
  X(cuMemHostUnregister, mem_host_unregister, (void* address))                                         \
  X(cuMemcpyDtoHAsync_v2, copy_to_host, (void* to, Address from, size_t bytes, Stream stream))         \
  X(cuMemcpyHtoDAsync_v2, copy_to_device, (Address to, const void* from, size_t bytes, Stream stream)) \
  X(cuMemcpyDtoDAsync_v2, copy_on_device, (Address to, Address from, size_t bytes, Stream stream))

struct Functions {
#define BPS_MEMBER(symbol, name, arguments) Code(*name) arguments;
  BPS_CUDA_FUNCTIONS(BPS_MEMBER)
#undef BPS_MEMBER
};

}  // namespace byteps::device::cuda
