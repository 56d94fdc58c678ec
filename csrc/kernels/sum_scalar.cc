#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/sum_targets.h"

namespace byteps::kernels {
namespace {

struct Target {
  static constexpr size_t kVectorBytes = 0;
  static float from_half(uint16_t half) { return half_to_float(half); }
  static uint16_t to_half(float value) { return float_to_half(value); }
  static uint32_t widen(uint16_t half) { return half; }
  static uint16_t narrow(uint32_t word) { return static_cast<uint16_t>(word); }
  template <typename T>
  static void stream(void* to, T value) {
    __builtin_memcpy(to, &value, sizeof(value));
  }
  static void fence() {}
  static bool any(bool mask) { return mask; }
};

}  // namespace
}  // namespace byteps::kernels

#include "kernels/sum-inl.h"

namespace byteps::kernels {

constinit const KernelTable kScalarKernels = all_kernels();

}  // namespace byteps::kernels
