// Conversion of float16 (IEEE binary16) and bfloat16 to and from float, one value at a time; 16-bit
// values are bit patterns in uint16_t.
//
// Widening is exact. Narrowing rounds to nearest, ties to even; values that are too large become
// infinities. A NaN stays NaN: its sign and leading payload bits are kept and it becomes quiet. The
// results equal those of x86's F16C instructions bit for bit, so that all instruction sets give the
// same sums.
#pragma once

#include <bit>
#include <cstdint>

namespace byteps::kernels {

inline constexpr uint32_t kFloatInfinity = 0x7f80'0000;

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half & 0x7c00;
  const uint32_t mantissa = half & 0x03ff;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x7c00) {
    const uint32_t quiet = mantissa != 0 ? 0x0040'0000 : 0;
    return std::bit_cast<float>(sign | kFloatInfinity | quiet | mantissa << 13);
  }
  constexpr uint32_t kBiasDifference = (127 - 15) << 23;
  return std::bit_cast<float>(sign | (((exponent | mantissa) << 13) + kBiasDifference));
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fff'ffff;
  const auto signed_half = [sign](uint32_t half) { return static_cast<uint16_t>(sign | half); };
  if (magnitude > kFloatInfinity) return signed_half(0x7e00 | (magnitude >> 13 & 0x01ff));
  constexpr uint32_t kTwoTo16 = (127 + 16) << 23;
  if (magnitude >= kTwoTo16) return signed_half(0x7c00);
  constexpr uint32_t kSmallestNormal = (127 - 14) << 23;
  if (magnitude < kSmallestNormal) {
    // The last bit of a float in [0.5, 1) is worth 2^-24, as is the last bit of a subnormal half,
    // so this addition rounds correctly.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    return signed_half(std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5F));
  }
  constexpr uint32_t kBiasDifference = (127 - 15) << 23;
  const uint32_t tie_to_even = 0x0fff + (magnitude >> 13 & 1);
  return signed_half((magnitude - kBiasDifference + tie_to_even) >>
                     13);  // a carry may correctly give infinity
}

inline float bfloat16_to_float(uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat16) << 16);
}

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fff'ffff) > kFloatInfinity) return static_cast<uint16_t>(bits >> 16 | 0x0040);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace byteps::kernels
