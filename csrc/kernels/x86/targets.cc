#include <cpuid.h>
#include <xmmintrin.h>

#include "kernels/float_environment.h"
#include "kernels/x86/sum_tables.h"

namespace byteps::kernels {
namespace {

// Uses CPUID directly, as clang 14's __builtin_cpu_supports does not know F16C.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// Values of MXCSR, the only part of the environment that vector instructions use.
constexpr unsigned kDefaultControls = 0x1f80;  // round to nearest even, keep denormals, no traps
constexpr unsigned kStatusBits = 0x3f;

}  // namespace

DefaultFloatEnvironment::DefaultFloatEnvironment() {
  saved_.__mxcsr = _mm_getcsr();
  if ((saved_.__mxcsr & ~kStatusBits) != kDefaultControls) _mm_setcsr(kDefaultControls);
}

DefaultFloatEnvironment::~DefaultFloatEnvironment() {
  if ((saved_.__mxcsr & ~kStatusBits) != kDefaultControls) _mm_setcsr(saved_.__mxcsr);
}

// The builtins check CPUID and XGETBV, and so also which registers the operating system saves.
Isa detect_best_isa() {
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return Isa::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
}

const KernelTable& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return kScalarKernels;
    case Isa::kAvx2: return kAvx2Kernels;
    case Isa::kAvx512: return kAvx512Kernels;
  }
  return kScalarKernels;
}

}  // namespace byteps::kernels
