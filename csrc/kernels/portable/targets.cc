#include "kernels/float_environment.h"
#include "kernels/sum_targets.h"

namespace byteps::kernels {

DefaultFloatEnvironment::DefaultFloatEnvironment() {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}

DefaultFloatEnvironment::~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

Isa detect_best_isa() { return Isa::kScalar; }

const KernelTable& kernels_for(Isa /*isa*/) { return kScalarKernels; }

}  // namespace byteps::kernels
