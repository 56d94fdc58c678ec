// The floating-point environment of a thread: rounding mode, flushing of denormals to zero
// (torch.set_flush_denormal, libraries built with -ffast-math) and traps. The program may change
// it, and new threads inherit it. Internal to kernels/.
#pragma once

#include <cfenv>

namespace byteps::kernels {

// Sets IEEE 754's default environment for this thread, and restores the previous one on
// destruction. Costs a few cycles if the default is set already. Defined once per architecture, as
// in sum_targets.h.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment();
  ~DefaultFloatEnvironment();
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace byteps::kernels
