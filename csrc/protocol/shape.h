// The shape of a tensor in 16 bytes, which every data head carries. With it a service recognizes
// ranks that use one name for different tensors, even where the byte counts agree. Pure.
//
// Shapes that fit are stored as they are; for longer ones, a hash and the number of elements. Two
// different hashed shapes compare equal with a probability of 2^-64.
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
  // Unknown: the owner of the memory gave its size only.
  Shape() = default;
  explicit Shape(const ShapeBytes& bytes) : bytes_(bytes) {}

  // Row-major. kInvalidArgument, here and below: a negative dimension, or too many elements.
  static Result<Shape> of(std::span<const int64_t> dims);
  // Stored in memory in this order of dimensions (a permutation), outermost first.
  static Result<Shape> in_order(std::span<const int64_t> dims, std::span<const int64_t> order);
  // Part of the collective with this number; equal only to parts of the same collective.
  static Result<Shape> of_collective(std::span<const int64_t> dims, int64_t number);

  bool is_known() const { return bytes_[0] != 0; }
  uint64_t elements() const;  // precondition: is_known()
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
  size_t num_dims() const;  // not of a hashed shape

  // Byte 0: form and number of values; then the values, 7 bits a byte, least significant first.
  ShapeBytes bytes_{};
};

}  // namespace byteps::protocol
