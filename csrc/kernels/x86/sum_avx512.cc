#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/x86/sum_tables.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace byteps::kernels {
namespace {

struct Target {
  static constexpr size_t kVectorBytes = 64;
  typedef uint16_t Halves __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)
  typedef uint32_t Words __attribute__((vector_size(64)));   // NOLINT(modernize-use-using)

  // Masked intrinsics with all lanes enabled compile to the same instructions. For the plain ones
  // GCC 12 warns of an uninitialised variable in its own header (GCC bug 105593).
  static constexpr __mmask16 kAllLanes = 0xffff;
  static __m512 from_half(Halves halves) {
    return _mm512_maskz_cvtph_ps(kAllLanes, reinterpret_cast<__m256i>(halves));
  }
  static Halves to_half(__m512 values) {
    return reinterpret_cast<Halves>(_mm512_maskz_cvtps_ph(kAllLanes, values, _MM_FROUND_TO_NEAREST_INT));
  }
  static Words widen(Halves halves) {
    return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(kAllLanes, reinterpret_cast<__m256i>(halves)));
  }
  static Halves narrow(Words words) {
    return reinterpret_cast<Halves>(_mm512_maskz_cvtepi32_epi16(kAllLanes, reinterpret_cast<__m512i>(words)));
  }

  template <typename V>
  static void stream(void* to, V vector) {
    if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(vector));
    } else {
      _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(vector));
    }
  }
  static void fence() { _mm_sfence(); }
  template <typename M>
  static bool any(M mask) {
    const auto bits = reinterpret_cast<__m512i>(mask);
    return _mm512_test_epi64_mask(bits, bits) != 0;
  }
};

}  // namespace
}  // namespace byteps::kernels

#include "kernels/sum-inl.h"

namespace byteps::kernels {

constinit const KernelTable kAvx512Kernels = all_kernels();

}  // namespace byteps::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
