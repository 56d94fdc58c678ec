// Kernels for x86's instruction sets. Those of a table run only on CPUs that support its set.
// Internal to kernels/.
#pragma once

#include "kernels/sum_targets.h"

namespace byteps::kernels {

extern const KernelTable kAvx2Kernels;    // sum_avx2.cc
extern const KernelTable kAvx512Kernels;  // sum_avx512.cc

}  // namespace byteps::kernels
