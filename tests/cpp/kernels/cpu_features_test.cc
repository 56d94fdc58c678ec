#include "kernels/cpu_features.h"

#include <gtest/gtest.h>

namespace byteps::kernels {
namespace {

TEST(CpuFeatures, every_machine_runs_the_scalar_kernels) { EXPECT_TRUE(is_supported(Isa::kScalar)); }

TEST(CpuFeatures, the_best_is_supported_and_nothing_after_it_is) {
  for (Isa isa : kAllIsas) EXPECT_EQ(is_supported(isa), isa <= best_isa()) << to_string(isa);
}

TEST(CpuFeatures, names) {
  EXPECT_EQ(to_string(Isa::kScalar), "scalar");
  EXPECT_EQ(to_string(Isa::kAvx2), "avx2");
  EXPECT_EQ(to_string(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace byteps::kernels
