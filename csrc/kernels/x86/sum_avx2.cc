#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/x86/sum_tables.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace byteps::kernels {
namespace {

struct Target {
  static constexpr size_t kVectorBytes = 32;
  typedef uint16_t Halves __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  typedef uint32_t Words __attribute__((vector_size(32)));   // NOLINT(modernize-use-using)

  static __m256 from_half(Halves halves) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)); }
  static Halves to_half(__m256 values) {
    return reinterpret_cast<Halves>(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
  // With __builtin_convertvector GCC 12 emits twice as many instructions.
  static Words widen(Halves halves) {
    return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
  }
  static Halves narrow(Words words) {
    const auto all = reinterpret_cast<__m256i>(words);
    const __m128i upper = _mm256_extracti128_si256(all, 1);
    return reinterpret_cast<Halves>(_mm_packus_epi32(_mm256_castsi256_si128(all), upper));
  }

  template <typename V>
  static void stream(void* to, V vector) {
    if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(vector));
    } else {
      _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(vector));
    }
  }
  static void fence() { _mm_sfence(); }
  template <typename M>
  static bool any(M mask) {
    const auto bits = reinterpret_cast<__m256i>(mask);
    return _mm256_testz_si256(bits, bits) == 0;
  }
};

}  // namespace
}  // namespace byteps::kernels

#include "kernels/sum-inl.h"

namespace byteps::kernels {

constinit const KernelTable kAvx2Kernels = all_kernels();

}  // namespace byteps::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
