// Sums follow docs/numerics.md even if the program changes its threads' floating-point environment.
#include "kernels/float_environment.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "kernels/sum.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace byteps::kernels {
namespace {

// During its lifetime this thread and the threads that it starts round upward; on x86 they also
// flush denormals to zero.
class OddEnvironment {
 public:
  OddEnvironment() {
    std::fegetenv(&saved_);
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#endif
  }
  ~OddEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

constexpr float kTiny = std::numeric_limits<float>::denorm_min();

bool is_default() {
#if defined(__x86_64__)
  return (_mm_getcsr() & ~0x3fu) == 0x1f80;  // all bits but the exception flags
#else
  return std::fegetround() == FE_TONEAREST;
#endif
}

TEST(FloatEnvironment, IsTheDefaultWhileOneLivesAndTheProgramsAfterwards) {
  const OddEnvironment odd;
  EXPECT_FALSE(is_default());
  {
    const DefaultFloatEnvironment environment;
    EXPECT_TRUE(is_default());
  }
  EXPECT_FALSE(is_default());
}

TEST(FloatEnvironment, ReductionsUseTheDefault) {
  constexpr size_t kCount = 1000;
  const std::vector<float> one(kCount, 1), less_than_half_an_ulp(kCount, 0x1p-25F), tiny(kCount, kTiny);
  std::vector<float> result(kCount);
  const auto sum = [&](const std::vector<float>& a, const std::vector<float>& b) {
    const std::array<const void*, 2> srcs = {a.data(), b.data()};
    const Reduction reduction{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
    reduce_n(reduction, result.data(), srcs, kCount);
    return std::vector<uint32_t>{std::bit_cast<uint32_t>(result.front()),
                                 std::bit_cast<uint32_t>(result[kCount / 2]),
                                 std::bit_cast<uint32_t>(result.back())};
  };
  const OddEnvironment odd;
  EXPECT_EQ(sum(one, less_than_half_an_ulp), std::vector<uint32_t>(3, 0x3f800000));
  EXPECT_EQ(sum(tiny, tiny), std::vector<uint32_t>(3, 2));
}

}  // namespace
}  // namespace byteps::kernels
