// Instruction sets that the kernels are compiled for, and which of them this CPU and kernel can run.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace byteps::kernels {

// Ascending: a CPU that has one has those before it.
enum class Isa : uint8_t {
  kScalar = 0,  // every machine
  kAvx2 = 1,    // with F16C
  kAvx512 = 2,  // F, BW, DQ and VL
};

inline constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

std::string_view to_string(Isa isa);  // "scalar", "avx2", "avx512"

// True when the CPU has the instructions, the operating system saves their registers and this build
// contains them.
bool is_supported(Isa isa);

// The last of kAllIsas that is supported. Asked of the CPU once; later calls cost a load.
Isa best_isa();

}  // namespace byteps::kernels
