// Compares csrc/device/cuda_abi.h with the header of a CUDA toolkit. Compiles, or does not:
//
//     c++ -std=c++20 -fsyntax-only -Icsrc -I/usr/local/cuda/include tests/cpp/device/cuda_abi_check.cc
#include <cuda.h>

#include <type_traits>

#include "device/cuda_abi.h"

namespace byteps::device::cuda {
namespace {

// Ours and the toolkit's: pointers to objects are alike, everything else is the same.
template <typename Ours, typename Theirs>
constexpr bool kSameArgument =
    (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) || std::is_same_v<Ours, Theirs> ||
    (std::is_integral_v<Ours> && std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs));

template <typename Ours, typename Theirs>
constexpr bool kSameFunction = false;
template <typename... Ours, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
constexpr bool kSameFunction<Code (*)(Ours...), CUresult (*)(Theirs...)> =
    (kSameArgument<Ours, Theirs> && ...);

#define BPS_SAME(symbol, name, arguments) \
  static_assert(kSameFunction<decltype(Functions::name), decltype(&::symbol)>, #symbol);
BPS_CUDA_FUNCTIONS(BPS_SAME)
#undef BPS_SAME

static_assert(sizeof(Address) == sizeof(CUdeviceptr) && sizeof(Ordinal) == sizeof(CUdevice));
static_assert(sizeof(Code) == sizeof(CUresult));

#define BPS_EQUAL(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)
BPS_EQUAL(kSuccess, CUDA_SUCCESS);
BPS_EQUAL(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
BPS_EQUAL(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
BPS_EQUAL(kErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
BPS_EQUAL(kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
BPS_EQUAL(kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
BPS_EQUAL(kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
BPS_EQUAL(kErrorNotReady, CUDA_ERROR_NOT_READY);
BPS_EQUAL(kErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
BPS_EQUAL(kErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
BPS_EQUAL(kErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
BPS_EQUAL(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
BPS_EQUAL(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
BPS_EQUAL(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
BPS_EQUAL(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
BPS_EQUAL(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
BPS_EQUAL(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
BPS_EQUAL(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);

}  // namespace
}  // namespace byteps::device::cuda
