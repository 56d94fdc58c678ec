// Between sum.cc and the files that compile sum-inl.h for one instruction set each. Internal to kernels/.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/sum.h"

namespace byteps::kernels {

// The elements [begin, end) of one reduce_n.
struct Call {
  void* dst;
  const void* const* srcs;
  size_t n;  // number of srcs
  size_t begin;
  size_t end;
  int divisor;
  const uint32_t* weights;  // used by kernels of weighted averages only
  StoreMode stores;
};

using Kernel = void (*)(const Call& call);

inline constexpr size_t kDTypes = 8;
inline constexpr size_t kReductions = 5;  // those of ReduceOp before kBroadcast
inline constexpr size_t kWeightedAverage = kReductions;
// [dtype - 1][op - 1 or kWeightedAverage]: both enumerations count from one. Null: averages of integers have no weights.
using KernelTable = std::array<std::array<Kernel, kReductions + 1>, kDTypes>;

extern const KernelTable kScalarKernels;

// Defined once for each architecture (x86/targets.cc, portable/targets.cc; CMake chooses).
Isa detect_best_isa();
// Precondition: `isa` is supported.
const KernelTable& kernels_for(Isa isa);

// The whole of one reduce_n.
Call make_call(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count,
               StoreMode stores);

// Precondition: `isa` is supported, `reduction` is one that has kernels.
Kernel find_kernel(Isa isa, const Reduction& reduction);

}  // namespace byteps::kernels
