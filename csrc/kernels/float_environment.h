// What the program may change of how its threads compute, and threads inherit: rounding, denormals that are flushed to
// zero (torch.set_flush_denormal, libraries built with -ffast-math), traps. Internal to kernels/.
#pragma once

#include <cfenv>

namespace byteps::kernels {

// While one lives, this thread computes as IEEE 754 does by default. Costs a few cycles if it does so anyway.
// Defined once for each architecture, as in sum_targets.h.
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
