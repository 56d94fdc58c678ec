#include "protocol/shape.h"

#include <algorithm>

#include "base/bytes.h"

namespace byteps::protocol {
namespace {

constexpr uint64_t kMostElements = 1ull << 48;
constexpr size_t kMostNumbers = 31;
// Layout of a hashed shape.
constexpr size_t kHash = 1;
constexpr size_t kElements = 9;

Result<uint64_t> count_elements(std::span<const int64_t> dims) {
  uint64_t elements = 1;
  for (const int64_t dim : dims) {
    if (dim < 0) return invalid_argument("shape: expected no negative dimension, got " + std::to_string(dim));
    if (elements != 0 && static_cast<uint64_t>(dim) > kMostElements / elements)
      return invalid_argument("shape: expected at most " + std::to_string(kMostElements) + " elements");
    elements *= static_cast<uint64_t>(dim);
  }
  return elements;
}

// FNV-1a.
uint64_t hash(const std::vector<uint64_t>& numbers) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint64_t number : numbers) {
    for (int bit = 0; bit < 64; bit += 8) hash = (hash ^ (number >> bit & 0xff)) * 0x100000001b3;
  }
  return hash;
}

void store(uint64_t value, size_t num_bytes, uint8_t* out) {
  for (size_t i = 0; i < num_bytes; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

std::string enumerate_numbers(std::span<const uint64_t> numbers) {
  std::string text;
  for (const uint64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

}  // namespace

Result<Shape> Shape::of(std::span<const int64_t> dims) { return make(Form::kRowMajor, dims, {}); }

Result<Shape> Shape::in_order(std::span<const int64_t> dims, std::span<const int64_t> order) {
  if (order.size() != dims.size()) return invalid_argument("shape: expected an order of all its dimensions");
  return make(Form::kInOrder, dims, order);
}

Result<Shape> Shape::of_collective(std::span<const int64_t> dims, int64_t number) {
  return make(Form::kOfCollective, dims, {&number, 1});
}

Result<Shape> Shape::make(Form form, std::span<const int64_t> dims, std::span<const int64_t> rest) {
  const Result<uint64_t> elements = count_elements(dims);
  if (!elements) return elements.status();
  std::vector<uint64_t> numbers(dims.begin(), dims.end());
  numbers.insert(numbers.end(), rest.begin(), rest.end());
  ShapeBytes bytes{};
  size_t used = 1;
  bool fits = numbers.size() <= kMostNumbers;
  for (size_t i = 0; i < numbers.size() && fits; ++i) {
    uint64_t left = numbers[i];
    do {
      fits = used < kShapeBytes;
      if (fits) bytes[used++] = static_cast<uint8_t>((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
      left >>= 7;
    } while (left > 0 && fits);
  }
  if (!fits) {
    bytes = {};
    numbers.push_back(static_cast<uint64_t>(form));
    store(hash(numbers), 8, &bytes[kHash]);
    store(*elements, kShapeBytes - kElements, &bytes[kElements]);
    form = Form::kHashed;
  }
  const size_t count = std::min(fits ? numbers.size() : dims.size(), kMostNumbers);
  bytes[0] = static_cast<uint8_t>(static_cast<uint8_t>(form) << 5 | count);
  return Shape(bytes);
}

// Any bytes are allowed: those that are no valid shape give arbitrary numbers.
std::vector<uint64_t> Shape::numbers() const {
  std::vector<uint64_t> numbers(count());
  size_t used = 1;
  for (uint64_t& number : numbers) {
    for (int bit = 0; used < kShapeBytes && bit < 63; bit += 7) {
      const uint8_t byte = bytes_[used++];
      number |= static_cast<uint64_t>(byte & 0x7f) << bit;
      if ((byte & 0x80) == 0) break;
    }
  }
  return numbers;
}

size_t Shape::num_dims() const {
  if (form() == Form::kInOrder) return count() / 2;
  return form() == Form::kOfCollective && count() > 0 ? count() - 1 : count();
}

uint64_t Shape::elements() const {
  uint64_t elements = 0;
  if (form() == Form::kHashed) {
    for (size_t i = kShapeBytes; i-- > kElements;) elements = elements << 8 | bytes_[i];
    return elements;
  }
  const std::vector<uint64_t> all = numbers();
  elements = 1;
  for (const uint64_t dim : std::span(all).first(num_dims())) elements *= dim;
  return elements;
}

std::string Shape::describe() const {
  if (form() == Form::kHashed) {
    return "a shape of " + std::to_string(elements()) + " elements in " + std::to_string(count()) +
           (count() == kMostNumbers ? " or more dimensions" : " dimensions");
  }
  const std::vector<uint64_t> all = numbers();
  const std::span<const uint64_t> numbers(all);
  const std::string dims =
      "(" + enumerate_numbers(numbers.first(num_dims())) + (num_dims() == 1 ? ",)" : ")");
  if (form() == Form::kInOrder)
    return dims + " in the order " + enumerate_numbers(numbers.subspan(num_dims()));
  const bool has_number = form() == Form::kOfCollective && !numbers.empty();
  return has_number ? dims + " in collective " + std::to_string(numbers.back()) : dims;
}

}  // namespace byteps::protocol
