#include "kernels/cpu_features.h"

#include "kernels/sum_targets.h"

namespace byteps::kernels {

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

bool is_supported(Isa isa) { return isa <= best_isa(); }

Isa best_isa() {
  static const Isa best = detect_best_isa();
  return best;
}

}  // namespace byteps::kernels
