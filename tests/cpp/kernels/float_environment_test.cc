// Programs change how their threads compute, and threads inherit it: sums are those of numerics.md all the same.
#include "kernels/float_environment.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "kernels/parallel.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace byteps::kernels {
namespace {

// Until its end this thread, and those that it starts, round upward; on x86 they flush denormals, too.
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
  return (_mm_getcsr() & ~0x3fu) == 0x1f80;  // but for what has happened so far
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

// Enough that helpers take part.
TEST(FloatEnvironment, OfWhoeverSumsIsTheDefault) {
  constexpr size_t kCount = 1 << 20;
  const std::vector<float> one(kCount, 1), less_than_half_an_ulp(kCount, 0x1p-25F), tiny(kCount, kTiny);
  std::vector<float> result(kCount);
  const auto sum = [&](Team* team, const std::vector<float>& a, const std::vector<float>& b) {
    const std::array<const void*, 2> srcs = {a.data(), b.data()};
    const Reduction reduction{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
    team != nullptr ? team->reduce_n(reduction, result.data(), srcs, kCount)
                    : reduce_n(reduction, result.data(), srcs, kCount);
    return std::vector<uint32_t>{std::bit_cast<uint32_t>(result.front()),
                                 std::bit_cast<uint32_t>(result[kCount / 2]),
                                 std::bit_cast<uint32_t>(result.back())};
  };
  const OddEnvironment odd;
  Team team(4);
  for (Team* each : {&team, static_cast<Team*>(nullptr)}) {
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(sum(each, one, less_than_half_an_ulp), std::vector<uint32_t>(3, 0x3f800000));
      EXPECT_EQ(sum(each, tiny, tiny), std::vector<uint32_t>(3, 2));
    }
  }
}

}  // namespace
}  // namespace byteps::kernels
