// The instruction sets that the kernels are compiled for, and which of them this machine can run.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace byteps::kernels {

// In ascending order: a CPU that supports one also supports those before it.
enum class Isa : uint8_t {
  kScalar = 0,  // runs everywhere
  kAvx2 = 1,    // with F16C
  kAvx512 = 2,  // F, BW, DQ and VL
};

inline constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

std::string_view to_string(Isa isa);  // "scalar", "avx2", "avx512"

// Whether the CPU has the instructions, the operating system saves their registers and this build
// contains the kernels.
bool is_supported(Isa isa);

// The last of kAllIsas that is supported. The CPU is queried once; later calls cost a load.
Isa best_isa();

}  // namespace byteps::kernels
