#include "kernels/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace byteps::kernels {
namespace {

constexpr uint32_t kPatterns = 1 << 16;

// A 16-bit format as defined by IEEE 754: sign, biased exponent, mantissa.
struct Format {
  int mantissa_bits;
  int bias;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);

  uint16_t infinity() const { return static_cast<uint16_t>(0x7fff >> mantissa_bits << mantissa_bits); }
  bool is_nan(uint16_t pattern) const { return (pattern & 0x7fff) > infinity(); }
  uint16_t quiet_bit() const { return static_cast<uint16_t>(1 << (mantissa_bits - 1)); }

  // Value in double, computed from the definition of the format. Precondition: finite.
  double value(uint16_t pattern) const {
    const int exponent = (pattern & 0x7fff) >> mantissa_bits;
    const int mantissa = pattern & ((1 << mantissa_bits) - 1);
    const int implicit_one = exponent > 0 ? 1 << mantissa_bits : 0;
    const double magnitude =
        std::ldexp(mantissa + implicit_one, std::max(exponent, 1) - bias - mantissa_bits);
    return (pattern & 0x8000) != 0 ? -magnitude : magnitude;
  }
};

class HalfFormats : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(, HalfFormats,
                         testing::Values(Format{10, 15, half_to_float, float_to_half},
                                         Format{7, 127, bfloat16_to_float, float_to_bfloat16}),
                         [](const auto& info) {
                           return info.param.mantissa_bits == 10 ? "float16" : "bfloat16";
                         });

TEST_P(HalfFormats, widening_is_exact_for_every_pattern) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < kPatterns; ++i) {
    const auto pattern = static_cast<uint16_t>(i);
    const float wide = format.widen(pattern);
    ASSERT_EQ(std::signbit(wide), (pattern & 0x8000) != 0) << pattern;
    if (format.is_nan(pattern)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
    } else if ((pattern & 0x7fff) == format.infinity()) {
      ASSERT_TRUE(std::isinf(wide)) << pattern;
    } else {
      ASSERT_EQ(wide, format.value(pattern)) << pattern;
    }
  }
}

TEST_P(HalfFormats, narrowing_undoes_widening_for_every_pattern) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < kPatterns; ++i) {
    const auto pattern = static_cast<uint16_t>(i);
    const uint16_t quieted = format.is_nan(pattern) ? pattern | format.quiet_bit() : pattern;
    ASSERT_EQ(format.narrow(format.widen(pattern)), quieted) << pattern;
  }
}

TEST_P(HalfFormats, narrowing_rounds_to_nearest_and_ties_to_even_between_all_neighbours) {
  const Format& format = GetParam();
  for (uint16_t sign : {0, 0x8000}) {
    for (uint16_t low = 0; low + 1 < format.infinity(); ++low) {
      const auto below = static_cast<uint16_t>(sign | low);
      const auto above = static_cast<uint16_t>(sign | (low + 1));
      const auto middle = static_cast<float>((format.value(below) + format.value(above)) / 2);
      const uint16_t even = (low & 1) == 0 ? below : above;
      ASSERT_EQ(format.narrow(middle), even) << low;
      ASSERT_EQ(format.narrow(std::nextafter(middle, 0.0F)), below) << low;
      ASSERT_EQ(format.narrow(std::nextafter(middle, sign != 0 ? -HUGE_VALF : HUGE_VALF)), above) << low;
    }
  }
}

TEST_P(HalfFormats, narrowing_overflows_to_infinity_from_half_a_step_above_the_largest) {
  const Format& format = GetParam();
  const auto largest = static_cast<uint16_t>(format.infinity() - 1);
  const double step = format.value(largest) - format.value(largest - 1);
  const auto limit = static_cast<float>(format.value(largest) + step / 2);
  EXPECT_EQ(format.narrow(limit), format.infinity());
  EXPECT_EQ(format.narrow(-limit), format.infinity() | 0x8000);
  EXPECT_EQ(format.narrow(std::nextafter(limit, 0.0F)), largest);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity());
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::infinity()), format.infinity());
}

TEST_P(HalfFormats, narrowing_keeps_nan_when_its_payload_is_lost) {
  const Format& format = GetParam();
  for (uint32_t payload : {1U, 0x1fffU, 0xffffU, 0x3fffffU, 0x400000U, 0x7fffffU}) {
    for (uint32_t sign : {0U, 0x8000'0000U}) {
      const uint16_t narrow = format.narrow(std::bit_cast<float>(sign | kFloatInfinity | payload));
      EXPECT_TRUE(format.is_nan(narrow)) << payload;
      EXPECT_EQ(narrow >> 15, sign >> 31) << payload;
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) uint16_t float_to_half_f16c(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
__attribute__((target("f16c"))) float half_to_float_f16c(uint16_t half) { return _cvtsh_ss(half); }

TEST(Half, is_what_the_f16c_instructions_give) {
  if (!is_supported(Isa::kAvx2)) GTEST_SKIP() << "this CPU has no F16C";
  for (uint32_t i = 0; i < kPatterns; ++i) {
    const auto half = static_cast<uint16_t>(i);
    ASSERT_EQ(std::bit_cast<uint32_t>(half_to_float(half)),
              std::bit_cast<uint32_t>(half_to_float_f16c(half)));
  }
  constexpr uint32_t kPrime = 4093;  // visits every exponent with many different mantissas
  for (uint64_t bits = 0; bits <= UINT32_MAX; bits += kPrime) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(float_to_half(value), float_to_half_f16c(value)) << bits;
  }
}
#endif

}  // namespace
}  // namespace byteps::kernels
