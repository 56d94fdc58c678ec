// Interface between sum.cc and the files that compile sum-inl.h for one instruction set each.
// Internal to kernels/.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>

#include "kernels/sum.h"

namespace byteps::kernels {

// The arguments of one reduce_n.
struct Call {
  void* dst;
  const void* const* srcs;
  size_t n;  // number of srcs
  size_t count;
  int divisor;
  const uint32_t* weights;  // used only by kernels of weighted averages
  StoreMode stores;
};

using Kernel = void (*)(const Call& call);

// The values of ReduceOp before kBroadcast.
inline constexpr size_t kReductions = static_cast<size_t>(ReduceOp::kBroadcast) - 1;
inline constexpr size_t kWeightedAverage = kReductions;
// Indexed by [dtype - 1][op - 1 or kWeightedAverage], as both enumerations start at one. Weighted
// averages of integers are null.
using KernelTable = std::array<std::array<Kernel, kReductions + 1>, std::size(kDTypes)>;

extern const KernelTable kScalarKernels;

// Defined once per architecture (x86/targets.cc, portable/targets.cc; CMake chooses).
Isa detect_best_isa();
// Precondition: `isa` is supported.
const KernelTable& kernels_for(Isa isa);

}  // namespace byteps::kernels
