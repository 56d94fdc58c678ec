// What a tensor looks like, in 16 bytes that travel with every data head: so that ranks that mean different tensors by
// one name are told apart, whatever their bytes. Pure.
//
// Shapes that fit are kept as they are; of others a hash and the number of elements. What is equal here is the same
// shape, but for one chance in 2^64 among those.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps::protocol {

inline constexpr size_t kShapeBytes = 16;
using ShapeBytes = std::array<uint8_t, kShapeBytes>;

class Shape {
 public:
  // Of memory whose owner says no more than its bytes.
  Shape() = default;
  explicit Shape(const ShapeBytes& bytes) : bytes_(bytes) {}

  // Row-major. kInvalidArgument, here and below: a negative number, or more elements than there can be.
  static Result<Shape> of(std::span<const int64_t> dims);
  // In memory, the dimensions follow each other in this order.
  static Result<Shape> in_order(std::span<const int64_t> dims, std::span<const int64_t> order);
  // Part of a collective that has this number; ranks that are at another one do not mean the same.
  static Result<Shape> of_collective(std::span<const int64_t> dims, int64_t number);

  bool is_known() const { return bytes_[0] != 0; }
  uint64_t elements() const;  // if is_known()
  // "(2, 3)", "(2, 3, 4, 5) in the order 0, 2, 3, 1", "(6,) in collective 17".
  std::string describe() const;

  const ShapeBytes& bytes() const { return bytes_; }
  bool operator==(const Shape&) const = default;

 private:
  enum class Form : uint8_t { kUnknown, kRowMajor, kInOrder, kOfCollective, kHashed };

  static Result<Shape> make(Form form, std::span<const int64_t> dims, std::span<const int64_t> rest);
  std::vector<uint64_t> numbers() const;
  Form form() const { return static_cast<Form>(bytes_[0] >> 5); }
  size_t count() const { return bytes_[0] & 0x1f; }

  ShapeBytes bytes_{};  // form and number of numbers; the numbers, seven bits a byte, least significant first
};

}  // namespace byteps::protocol
