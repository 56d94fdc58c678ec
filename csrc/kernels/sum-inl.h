// The loop of sum.h, written once for all targets. A target's .cc defines `Target` and then
// includes this file, both inside its region of `#pragma GCC target`:
//   struct Target {
//     static constexpr size_t kVectorBytes;    // 0: one element at a time
//     // Floats and Words (uint32_t) are vectors of kVectorBytes, Halves (uint16_t) of half of
//     // that size. With kVectorBytes = 0 each is one value.
//     static Floats from_half(Halves halves);  // float16
//     static Halves to_half(Floats values);
//     static Words widen(Halves halves);       // zero-extends
//     static Halves narrow(Words words);       // precondition: each below 2^16
//     template <typename V>
//     static void stream(void* to, V vector);  // a streaming store; `to` is aligned
//     static void fence();                     // orders streaming stores before later stores
//     template <typename M>
//     static bool any(M mask);                 // mask: result of a comparison of Floats or doubles
//   };
//
// This file includes nothing and has internal linkage throughout. An inline function of another
// header, compiled here for one instruction set, could be the copy that the linker keeps for the
// whole program.
//
// CMakeLists.txt forbids fused multiply-add, which keeps the targets equal bit for bit.

namespace byteps::kernels {
namespace {

template <typename T, size_t kLanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * kLanes)));  // NOLINT(modernize-use-using)
};
template <typename T>
struct VectorOf<T, 1> {
  using Type = T;
};
template <typename T, size_t kLanes>
using Vector = typename VectorOf<T, kLanes>::Type;

template <typename T>
inline constexpr size_t kLanesOf = Target::kVectorBytes == 0 ? 1 : Target::kVectorBytes / sizeof(T);

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- Elements: how each dtype is stored and computed ----

// A dtype that is computed in its own type. W: type of the same size with wrap-around arithmetic.
template <typename T, typename W>
struct Plain {
  static constexpr size_t kLanes = kLanesOf<T>;
  using Stored = T;
  using Packed = Vector<T, kLanes>;  // in memory
  using Values = Vector<T, kLanes>;  // in registers
  using Wrapping = Vector<W, kLanes>;

  static Values unpack(Packed packed) { return packed; }
  static Packed pack(Values values) { return values; }
};

// A dtype of 16 bits that is computed in float32.
struct StoredIn16Bits {
  static constexpr size_t kLanes = kLanesOf<float>;
  using Stored = uint16_t;
  using Packed = Vector<uint16_t, kLanes>;
  using Values = Vector<float, kLanes>;
  using Wrapping = Values;
};

struct Half : StoredIn16Bits {
  static Values unpack(Packed packed) { return Target::from_half(packed); }
  static Packed pack(Values values) { return Target::to_half(values); }
};

// Rounds as half.h does. NaN needs no special case: every NaN here comes from a bfloat16 or the
// CPU, so its lower half is zero and rounding does not change it.
struct BFloat16 : StoredIn16Bits {
  using Words = Vector<uint32_t, kLanes>;

  static Values unpack(Packed packed) { return bits_as<Values>(Target::widen(packed) << 16); }
  static Packed pack(Values values) {
    const Words bits = bits_as<Words>(values);
    return Target::narrow((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

template <typename E>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<typename E::Stored> || std::is_same_v<typename E::Stored, uint16_t>;

// The type of a single computed element of a float type.
template <typename E>
using Number = std::conditional_t<std::is_same_v<typename E::Stored, double>, double, float>;

// ---- Operations: combine() two inputs, finish() the result ----

struct Identity {
  static constexpr bool kIsMean = false;
  static constexpr bool kIsWeighted = false;
  template <typename E>
  static typename E::Values finish(typename E::Values values, int /*divisor*/) {
    return values;
  }
};

struct Sum : Identity {
  template <typename E>
  static typename E::Values combine(typename E::Values a, typename E::Values b) {
    using W = typename E::Wrapping;
    const W sum = bits_as<W>(a) + bits_as<W>(b);
    return bits_as<typename E::Values>(sum);
  }
};

struct Product : Identity {
  template <typename E>
  static typename E::Values combine(typename E::Values a, typename E::Values b) {
    using W = typename E::Wrapping;
    const W product = bits_as<W>(a) * bits_as<W>(b);
    return bits_as<typename E::Values>(product);
  }
};

// `a != a` selects `a` if it is NaN. If only `b` is NaN, both comparisons are false, which selects
// `b`.
struct Min : Identity {
  template <typename E>
  static typename E::Values combine(typename E::Values a, typename E::Values b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
};

struct Max : Identity {
  template <typename E>
  static typename E::Values combine(typename E::Values a, typename E::Values b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};

template <typename T>
T floor_divide(T value, int divisor) {
  using Wide = decltype(value + divisor);
  const Wide quotient = value / divisor;
  return static_cast<T>(quotient - (value % divisor < 0 ? 1 : 0));
}

struct Average : Sum {
  static constexpr bool kIsMean = true;
  template <typename E>
  static typename E::Values finish(typename E::Values sum, int divisor) {
    using T = typename E::Stored;
    if constexpr (kIsFloat<E>) {
      return sum * static_cast<Number<E>>(1.0 / divisor);
    } else if constexpr (E::kLanes == 1) {
      return floor_divide(sum, divisor);
    } else {
      for (size_t lane = 0; lane < E::kLanes; ++lane) sum[lane] = floor_divide<T>(sum[lane], divisor);
      return sum;
    }
  }
};

struct WeightedAverage : Average {
  static constexpr bool kIsWeighted = true;
};

// ---- The loop ----

// Lanes beyond `size_bytes` are zero.
template <typename E>
inline typename E::Values load(const void* src, size_t at, size_t size_bytes = sizeof(typename E::Packed)) {
  typename E::Packed packed{};
  __builtin_memcpy(&packed, static_cast<const std::byte*>(src) + at, size_bytes);
  return E::unpack(packed);
}

template <typename E>
inline void store(void* dst, size_t at, typename E::Values values, bool streaming) {
  const typename E::Packed packed = E::pack(values);
  std::byte* to = static_cast<std::byte*>(dst) + at;
  if (streaming) {
    Target::stream(to, packed);
  } else {
    __builtin_memcpy(to, &packed, sizeof(packed));
  }
}

template <typename E, typename Op>
inline typename E::Values weighted(const Call& call, size_t source, typename E::Values values) {
  if constexpr (Op::kIsWeighted) {
    return values * static_cast<Number<E>>(call.weights[source]);
  } else {
    return values;
  }
}

// Whether the sum may overflow although the mean is finite. float16 cannot, as it is summed in
// float32.
template <typename E, typename Op>
inline constexpr bool kNeedsCare = Op::kIsMean && kIsFloat<E> && !std::is_same_v<E, Half>;

// May return false for finite values if they are large.
template <typename E, size_t kCount>
inline bool all_finite(const typename E::Values (&values)[kCount]) {
  using Values = typename E::Values;
  if constexpr (E::kLanes == 1 && kCount > 1) {
    // Uses 16-byte vectors, which every CPU has, as the compiler does not vectorize this by itself.
    using Part = Vector<Number<E>, 16 / sizeof(Number<E>)>;
    constexpr size_t kParts = kCount * sizeof(Number<E>) / sizeof(Part);
    Part parts[kParts];
    __builtin_memcpy(parts, values, sizeof(values));
    Part sum = parts[0];
    for (size_t p = 1; p < kParts; ++p) sum += parts[p];
    const auto bad = bits_as<Vector<uint64_t, 2>>(sum - sum != Part{});
    return (bad[0] | bad[1]) == 0;
  } else {
    Values sum = values[0];
    for (size_t v = 1; v < kCount; ++v) sum += values[v];
    return !Target::any(sum - sum != Values{});
  }
}

// Replaces the elements of `mean` whose sum has overflowed: sums the inputs again, scaled down.
template <typename E, typename Op>
__attribute__((noinline)) void mend_mean(const Call& call, size_t at, size_t size_bytes,
                                         typename E::Values& mean) {
  using Values = typename E::Values;
  constexpr Number<E> kLargest =
      std::is_same_v<Number<E>, double> ? static_cast<Number<E>>(__DBL_MAX__) : __FLT_MAX__;
  Number<E> power = 2;
  while (power < 2 * static_cast<Number<E>>(call.divisor)) power *= 2;
  Values sum{};
  for (size_t s = 0; s < call.n; ++s) {
    const Number<E> weight = Op::kIsWeighted ? static_cast<Number<E>>(call.weights[s]) : 1;
    const Values term = load<E>(call.srcs[s], at, size_bytes) * (weight / power);
    sum = s == 0 ? term : sum + term;
  }
  Values mended = sum * (power * static_cast<Number<E>>(1.0 / call.divisor));
  const Values largest = Values{} + kLargest;
  mended = ((mended > largest) & (sum <= largest)) ? largest : mended;
  mended = ((mended < -largest) & (sum >= -largest)) ? -largest : mended;
  mean = mean - mean == Values{} ? mean : mended;
}

// Reduces kVectors vectors at byte offset `at`. Reads all of them before writing, as dst may be one
// of the sources.
template <typename E, typename Op, size_t kVectors>
inline void reduce_vectors(const Call& call, size_t at, bool streaming) {
  constexpr size_t kStep = sizeof(typename E::Packed);
  typename E::Values results[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    results[v] = weighted<E, Op>(call, 0, load<E>(call.srcs[0], at + v * kStep));
  }
  for (size_t s = 1; s < call.n; ++s) {
    const void* src = call.srcs[s];
    for (size_t v = 0; v < kVectors; ++v) {
      results[v] =
          Op::template combine<E>(results[v], weighted<E, Op>(call, s, load<E>(src, at + v * kStep)));
    }
  }
  for (size_t v = 0; v < kVectors; ++v) results[v] = Op::template finish<E>(results[v], call.divisor);
  if constexpr (kNeedsCare<E, Op>) {
    if (!all_finite<E>(results)) {
      for (size_t v = 0; v < kVectors; ++v) mend_mean<E, Op>(call, at + v * kStep, kStep, results[v]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) store<E>(call.dst, at + v * kStep, results[v], streaming);
}

// Reduces less than one vector with the same arithmetic; lanes beyond `size_bytes` are zero and
// unused.
template <typename E, typename Op>
void reduce_part(const Call& call, size_t at, size_t size_bytes) {
  if (size_bytes == 0) return;
  typename E::Values result[1] = {weighted<E, Op>(call, 0, load<E>(call.srcs[0], at, size_bytes))};
  for (size_t s = 1; s < call.n; ++s) {
    const typename E::Values next = load<E>(call.srcs[s], at, size_bytes);
    result[0] = Op::template combine<E>(result[0], weighted<E, Op>(call, s, next));
  }
  result[0] = Op::template finish<E>(result[0], call.divisor);
  if constexpr (kNeedsCare<E, Op>) {
    if (!all_finite<E>(result)) mend_mean<E, Op>(call, at, size_bytes, result[0]);
  }
  const typename E::Packed packed = E::pack(result[0]);
  __builtin_memcpy(static_cast<std::byte*>(call.dst) + at, &packed, size_bytes);
}

// Number of bytes from `dst` to the next multiple of `alignment`.
inline size_t bytes_to_alignment(const std::byte* dst, size_t alignment) {
  return (alignment - bits_as<uintptr_t>(dst) % alignment) % alignment;
}

template <typename E, typename Op>
void reduce(const Call& shared_call) {
  // A copy, so that the compiler knows that stores to dst do not change it.
  const Call call = shared_call;
  constexpr size_t kElement = sizeof(typename E::Stored);
  constexpr size_t kStep = sizeof(typename E::Packed);
  constexpr size_t kUnrolled = kNeedsCare<E, Op> && Target::kVectorBytes < 64 ? 8 : 4;
  size_t at = 0;
  const size_t end = call.count * kElement;

  const size_t to_alignment = bytes_to_alignment(static_cast<const std::byte*>(call.dst) + at, kStep);
  const bool can_align = to_alignment % kElement == 0;
  const bool streaming = can_align && call.stores == StoreMode::kStreaming;
  if (can_align && to_alignment < end - at) {
    reduce_part<E, Op>(call, at, to_alignment);
    at += to_alignment;
  }
  for (; end - at >= kUnrolled * kStep; at += kUnrolled * kStep) {
    reduce_vectors<E, Op, kUnrolled>(call, at, streaming);
  }
  for (; end - at >= kStep; at += kStep) reduce_vectors<E, Op, 1>(call, at, streaming);
  reduce_part<E, Op>(call, at, end - at);
  if (streaming) Target::fence();
}

template <typename E>
constexpr Kernel weighted_average_of() {
  if constexpr (kIsFloat<E>) {
    return reduce<E, WeightedAverage>;
  } else {
    return nullptr;
  }
}

template <typename E>
constexpr std::array<Kernel, kReductions + 1> kernels_of() {
  return {reduce<E, Sum>, reduce<E, Average>, reduce<E, Min>,
          reduce<E, Max>, reduce<E, Product>, weighted_average_of<E>()};
}

constexpr KernelTable all_kernels() {
  // Does not compile if it has not one entry for each of kDTypes.
  return std::array{kernels_of<Half>(),
                    kernels_of<BFloat16>(),
                    kernels_of<Plain<float, float>>(),
                    kernels_of<Plain<double, double>>(),
                    kernels_of<Plain<int8_t, uint8_t>>(),
                    kernels_of<Plain<uint8_t, uint8_t>>(),
                    kernels_of<Plain<int32_t, uint32_t>>(),
                    kernels_of<Plain<int64_t, uint64_t>>()};
}

}  // namespace
}  // namespace byteps::kernels
