// Every instruction set: the same bits as the scalar kernels, and the rules of sum.h.
#include "kernels/sum_harness.h"

namespace byteps::kernels {
namespace {

class Kernels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "this CPU has no " << to_string(GetParam());
  }

  template <typename T>
  std::vector<T> reduce(const Reduction& reduction, const std::vector<std::vector<T>>& inputs) const {
    std::vector<const void*> srcs;
    for (const auto& input : inputs) srcs.push_back(input.data());
    std::vector<T> dst(inputs[0].size());
    reduce_n_with(GetParam(), StoreMode::kCached, reduction, dst.data(), srcs, dst.size());
    return dst;
  }

  // Enough copies of one element that both the vector loop and the remainder compute it.
  template <typename T>
  T reduce_one(const Reduction& reduction, const std::vector<T>& inputs) const {
    constexpr size_t kCopies = 131;
    std::vector<std::vector<T>> arrays;
    for (T input : inputs) arrays.emplace_back(kCopies, input);
    const std::vector<T> results = reduce(reduction, arrays);
    for (const T& result : results) EXPECT_EQ(std::memcmp(&result, &results[0], sizeof(T)), 0);
    return results[0];
  }

  float reduce_floats(ReduceOp op, const std::vector<float>& inputs) const {
    return reduce_one<float>({.dtype = DType::kFloat32, .op = op}, inputs);
  }
};

INSTANTIATE_TEST_SUITE_P(, Kernels, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return std::string(to_string(info.param)); });

class EveryLength : public Kernels {
 protected:
  static constexpr size_t kGuard = 80;
  static constexpr std::byte kUntouched{0xa5};

  // Compares one call with the scalar kernel; its arrays are `offset` bytes off their alignment.
  void check(const Reduction& reduction, const std::vector<Buffer>& srcs, size_t count, size_t dst_offset,
             size_t src_offset, StoreMode stores) const {
    const size_t size_bytes = count * size_of(reduction.dtype);
    const std::vector<const void*> pointers = pointers_to(srcs, src_offset);
    Buffer expected(size_bytes);
    reduce_n_with(Isa::kScalar, StoreMode::kCached, reduction, expected.data(), pointers, count);
    Buffer dst(kGuard + dst_offset + size_bytes + kGuard, kUntouched);
    std::byte* begin = dst.data() + kGuard + dst_offset;
    reduce_n_with(GetParam(), stores, reduction, begin, pointers, count);

    Buffer actual(begin, begin + size_bytes);
    if (reduction.op != ReduceOp::kMin && reduction.op != ReduceOp::kMax) {
      make_all_nan_equal(reduction.dtype, expected);
      make_all_nan_equal(reduction.dtype, actual);
    }
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    ASSERT_TRUE(actual == expected && std::all_of(dst.data(), begin, untouched) &&
                std::all_of(begin + size_bytes, dst.data() + dst.size(), untouched))
        << describe(reduction, srcs.size()) << ", " << count << " elements, dst " << dst_offset
        << " and srcs " << src_offset << " bytes off";
  }
};

INSTANTIATE_TEST_SUITE_P(, EveryLength, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(EveryLength, and_misalignment_gives_the_bits_of_the_scalar_kernels) {
  struct Offsets {
    size_t dst;
    size_t src;
  };
  constexpr std::array<Offsets, 5> kOffsets = {{{0, 0}, {8, 0}, {0, 1}, {3, 24}, {16, 2}}};
  std::mt19937_64 random(2);
  for (const DTypeRow& row : kDTypes) {
    const DType dtype = row.code;
    const size_t lanes = 64 / size_of(dtype);  // lanes of the widest vectors, or more
    const size_t longest = 4 * lanes + 3;
    for (size_t n : kInputs) {
      std::vector<Buffer> srcs;
      for (size_t s = 0; s < n; ++s) srcs.push_back(random_patterns(dtype, longest + 300, random));
      for (const Reduction& reduction : all_reductions(dtype, n, 3)) {
        for (size_t count = 0; count <= longest; ++count) {
          const Offsets offsets = kOffsets[count % kOffsets.size()];
          const StoreMode stores = count % 2 == 0 ? StoreMode::kCached : StoreMode::kStreaming;
          check(reduction, srcs, count, offsets.dst, offsets.src, stores);
          check(reduction, srcs, count, offsets.src, offsets.dst, StoreMode::kCached);
        }
        for (const Offsets& offsets : kOffsets) {
          check(reduction, srcs, longest + 250, offsets.dst, offsets.src, StoreMode::kCached);
          check(reduction, srcs, longest + 250, offsets.dst, offsets.src, StoreMode::kStreaming);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Kernels, dst_may_be_any_of_the_inputs) {
  std::mt19937_64 random(3);
  constexpr size_t kCount = 517;
  for (const DTypeRow& row : kDTypes) {
    const DType dtype = row.code;
    for (const Reduction& reduction : all_reductions(dtype, 4, 4)) {
      std::vector<Buffer> srcs;
      for (size_t s = 0; s < 4; ++s) srcs.push_back(random_numbers(dtype, kCount, random));
      srcs[3] = srcs[1];
      Buffer expected(srcs[0].size());
      reduce_n_with(GetParam(), StoreMode::kCached, reduction, expected.data(), pointers_to(srcs), kCount);
      for (size_t target = 0; target < srcs.size(); ++target) {
        std::vector<Buffer> copies = srcs;
        std::vector<const void*> pointers = pointers_to(copies);
        if (target == 1) pointers[3] = pointers[1];  // the same array twice
        reduce_n_with(GetParam(), StoreMode::kCached, reduction, copies[target].data(), pointers, kCount);
        EXPECT_EQ(copies[target], expected) << describe(reduction, 4) << " into input " << target;
      }
    }
  }
}

TEST_P(Kernels, pieces_give_the_bits_of_the_whole) {
  std::mt19937_64 random(4);
  constexpr size_t kCount = 203;
  for (const DTypeRow& row : kDTypes) {
    const DType dtype = row.code;
    const Reduction reduction{.dtype = dtype, .op = ReduceOp::kAverage, .divisor = 3};
    std::vector<Buffer> srcs;
    for (size_t s = 0; s < 3; ++s) srcs.push_back(random_numbers(dtype, kCount, random));
    Buffer whole(srcs[0].size());
    reduce_n_with(GetParam(), StoreMode::kCached, reduction, whole.data(), pointers_to(srcs), kCount);
    for (size_t split = 0; split <= kCount; ++split) {
      const size_t split_bytes = split * size_of(dtype);
      Buffer pieces(whole.size());
      reduce_n_with(GetParam(), StoreMode::kCached, reduction, pieces.data(), pointers_to(srcs), split);
      reduce_n_with(GetParam(), StoreMode::kCached, reduction, pieces.data() + split_bytes,
                    pointers_to(srcs, split_bytes), kCount - split);
      ASSERT_EQ(pieces, whole) << to_string(dtype) << " split at " << split;
    }
  }
}

TEST_P(Kernels, sums_in_the_order_of_the_inputs) {
  EXPECT_EQ(reduce_floats(ReduceOp::kSum, {1e8F, 1.0F, -1e8F}), 0.0F);
  EXPECT_EQ(reduce_floats(ReduceOp::kSum, {1e8F, -1e8F, 1.0F}), 1.0F);
}

TEST_P(Kernels, halves_are_accumulated_in_float32_and_rounded_once) {
  const auto sum16 = [&](const std::vector<float>& inputs, ReduceOp op) {
    std::vector<uint16_t> halves;
    for (float input : inputs) halves.push_back(float_to_half(input));
    return half_to_float(reduce_one<uint16_t>({.dtype = DType::kFloat16, .op = op, .divisor = 2}, halves));
  };
  EXPECT_EQ(sum16({2048, 1, 1}, ReduceOp::kSum), 2050);         // 2049 is not a float16
  EXPECT_EQ(sum16({65504, 65504}, ReduceOp::kAverage), 65504);  // the sum alone would be infinite
  EXPECT_EQ(sum16({65504, 65504}, ReduceOp::kSum), HUGE_VALF);

  std::vector<uint16_t> bfloats;
  for (float input : {256.0F, 1.0F, 1.0F}) bfloats.push_back(float_to_bfloat16(input));
  EXPECT_EQ(
      bfloat16_to_float(reduce_one<uint16_t>({.dtype = DType::kBFloat16, .op = ReduceOp::kSum}, bfloats)),
      258);
}

TEST_P(Kernels, averages_of_floats_multiply_by_the_rounded_reciprocal) {
  const Reduction average{.dtype = DType::kFloat32, .op = ReduceOp::kAverage, .divisor = 3};
  EXPECT_EQ(reduce_one<float>(average, {2.0F, 3.0F, 0.0F}), 5.0F * static_cast<float>(1.0 / 3));
  const Reduction average64{.dtype = DType::kFloat64, .op = ReduceOp::kAverage, .divisor = 49};
  EXPECT_EQ(reduce_one<double>(average64, {48.0, 1.0}), 49 * (1.0 / 49));
}

// Various sizes, so that overflowing elements share vectors with others.
TEST_P(Kernels, averages_of_finite_values_are_finite_and_of_equal_ones_nearly_that_value) {
  const auto check = [&]<typename T>(DType dtype, T largest, T smallest, auto as_double) {
    for (const T value : {largest, smallest}) {
      for (size_t n = 1; n <= 8; ++n) {
        for (const Reduction& reduction : all_reductions(dtype, n, static_cast<int>(n))) {
          if (reduction.op != ReduceOp::kAverage) continue;
          std::vector<std::vector<T>> inputs(n, std::vector<T>(77, T{}));
          for (auto& input : inputs) input[38] = input[76] = value;
          const std::vector<T> result = reduce(reduction, inputs);
          for (const size_t i : {38, 76}) {
            EXPECT_NEAR(as_double(result[i]) / as_double(value), 1, 1e-6) << describe(reduction, n);
          }
          EXPECT_EQ(result[37], T{}) << describe(reduction, n);
        }
      }
    }
  };
  const auto self = [](auto value) { return static_cast<double>(value); };
  check(DType::kFloat32, FLT_MAX, -std::numeric_limits<float>::denorm_min(), self);
  check(DType::kFloat64, -DBL_MAX, std::numeric_limits<double>::denorm_min(), self);
  check(DType::kFloat16, uint16_t{0x7bff}, uint16_t{1}, half_to_float);
  check(DType::kBFloat16, uint16_t{0xff7f}, uint16_t{1}, bfloat16_to_float);
}

TEST_P(Kernels, averages_whose_sum_is_too_large_are_those_of_smaller_numbers) {
  const Reduction third{.dtype = DType::kFloat32, .op = ReduceOp::kAverage, .divisor = 3};
  const float large = 0x1.234568p127F;
  EXPECT_EQ(reduce_one<float>(third, {large, large, -large}), large / 8 * (8 * static_cast<float>(1.0 / 3)));
  EXPECT_EQ(reduce_one<float>(third, {large, HUGE_VALF, large}), HUGE_VALF);
  EXPECT_EQ(reduce_one<float>(third, {large, -HUGE_VALF, large}), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(reduce_one<float>(third, {HUGE_VALF, -HUGE_VALF, large})));
  constexpr std::array<uint32_t, 2> weights = {3, 1};
  const Reduction quarter{DType::kFloat32, ReduceOp::kAverage, 4, weights};
  EXPECT_EQ(reduce_one<float>(quarter, {large, -large}), large / 2);
}

TEST_P(Kernels, averages_of_integers_round_towards_minus_infinity) {
  const auto average = [&](auto sum, DType dtype, int divisor) {
    using T = decltype(sum);
    return reduce_one<T>({.dtype = dtype, .op = ReduceOp::kAverage, .divisor = divisor}, {sum, T{0}});
  };
  EXPECT_EQ(average(int32_t{-7}, DType::kInt32, 2), -4);
  EXPECT_EQ(average(int32_t{7}, DType::kInt32, 2), 3);
  EXPECT_EQ(average(int32_t{-6}, DType::kInt32, 3), -2);
  EXPECT_EQ(average(INT32_MIN, DType::kInt32, 3), -715827883);
  EXPECT_EQ(average(INT64_MIN, DType::kInt64, 3), -3074457345618258603);
  EXPECT_EQ(average(int8_t{-1}, DType::kInt8, 200), -1);
  EXPECT_EQ(average(int8_t{100}, DType::kInt8, 200), 0);
  EXPECT_EQ(average(uint8_t{255}, DType::kUInt8, 2), 127);
}

TEST_P(Kernels, integers_wrap) {
  const auto both = [&](auto a, auto b, DType dtype, ReduceOp op) {
    return reduce_one<decltype(a)>({.dtype = dtype, .op = op}, {a, b});
  };
  EXPECT_EQ(both(int8_t{127}, int8_t{1}, DType::kInt8, ReduceOp::kSum), -128);
  EXPECT_EQ(both(uint8_t{255}, uint8_t{2}, DType::kUInt8, ReduceOp::kSum), 1);
  EXPECT_EQ(both(INT32_MAX, int32_t{1}, DType::kInt32, ReduceOp::kSum), INT32_MIN);
  EXPECT_EQ(both(INT64_MIN, int64_t{-1}, DType::kInt64, ReduceOp::kSum), INT64_MAX);
  EXPECT_EQ(both(int8_t{16}, int8_t{17}, DType::kInt8, ReduceOp::kProduct), 16);
  EXPECT_EQ(both(int32_t{65536}, int32_t{65537}, DType::kInt32, ReduceOp::kProduct), 65536);
  EXPECT_EQ(both(INT64_MIN, int64_t{-1}, DType::kInt64, ReduceOp::kProduct), INT64_MIN);
}

TEST_P(Kernels, min_and_max_are_signed_where_the_type_is) {
  const auto both = [&](auto a, auto b, DType dtype, ReduceOp op) {
    return reduce_one<decltype(a)>({.dtype = dtype, .op = op}, {a, b});
  };
  EXPECT_EQ(both(int8_t{-1}, int8_t{1}, DType::kInt8, ReduceOp::kMin), -1);
  EXPECT_EQ(both(uint8_t{255}, uint8_t{1}, DType::kUInt8, ReduceOp::kMin), 1);
  EXPECT_EQ(both(INT32_MIN, int32_t{1}, DType::kInt32, ReduceOp::kMax), 1);
  EXPECT_EQ(both(INT64_MIN, INT64_MAX, DType::kInt64, ReduceOp::kMax), INT64_MAX);
}

TEST_P(Kernels, nan_in_any_place_wins) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : kOps) {
    EXPECT_TRUE(std::isnan(reduce_floats(op, {nan, 1, 2}))) << to_string(op);
    EXPECT_TRUE(std::isnan(reduce_floats(op, {1, nan, 2}))) << to_string(op);
    EXPECT_TRUE(std::isnan(reduce_floats(op, {1, 2, nan}))) << to_string(op);
  }
  EXPECT_TRUE(std::isnan(reduce_floats(ReduceOp::kSum, {HUGE_VALF, -HUGE_VALF})));
}

TEST_P(Kernels, min_and_max_keep_the_first_nan_and_the_first_zero) {
  const auto first = std::bit_cast<float>(0x7fc0'0001);
  const auto second = std::bit_cast<float>(0xffc0'0002);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(reduce_floats(op, {1, first, second})), 0x7fc0'0001U);
    EXPECT_TRUE(std::signbit(reduce_floats(op, {-0.0F, 0.0F})));
    EXPECT_FALSE(std::signbit(reduce_floats(op, {0.0F, -0.0F})));
  }
}

TEST_P(Kernels, infinities_and_subnormals_are_numbers) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(reduce_floats(ReduceOp::kSum, {tiny, tiny}), 2 * tiny);
  EXPECT_EQ(reduce_floats(ReduceOp::kSum, {HUGE_VALF, 1}), HUGE_VALF);
  EXPECT_EQ(reduce_floats(ReduceOp::kMin, {HUGE_VALF, -HUGE_VALF, 0}), -HUGE_VALF);
  EXPECT_EQ(reduce_floats(ReduceOp::kMax, {-tiny, -HUGE_VALF}), -tiny);
}

// ---- The choices of reduce_n ----

TEST(ReduceN, uses_streaming_stores_only_for_what_outgrows_the_caches_and_is_not_in_place) {
  const std::array<const void*, 2> srcs = {"a", "b"};
  const char dst = 0;
  EXPECT_EQ(choose_stores(&dst, srcs, size_t{4} << 20), StoreMode::kCached);
  EXPECT_EQ(choose_stores(&dst, srcs, size_t{64} << 20), StoreMode::kStreaming);
  EXPECT_EQ(choose_stores(srcs[1], srcs, size_t{64} << 20), StoreMode::kCached);
}

TEST(ReduceN, gives_the_bits_of_every_instruction_set) {
  std::mt19937_64 random(5);
  std::vector<Buffer> srcs;
  for (size_t s = 0; s < 3; ++s) srcs.push_back(random_numbers(DType::kBFloat16, 1000, random));
  const Reduction average{.dtype = DType::kBFloat16, .op = ReduceOp::kAverage, .divisor = 3};
  Buffer expected(srcs[0].size());
  reduce_n_with(Isa::kScalar, StoreMode::kCached, average, expected.data(), pointers_to(srcs), 1000);
  Buffer actual(srcs[0].size());
  reduce_n(average, actual.data(), pointers_to(srcs), 1000);
  EXPECT_EQ(actual, expected);
}

TEST(ReduceN, of_no_elements_touches_nothing) {
  const std::array<const void*, 1> srcs = {nullptr};
  reduce_n({.dtype = DType::kFloat16, .op = ReduceOp::kSum}, nullptr, srcs, 0);
}

}  // namespace
}  // namespace byteps::kernels
