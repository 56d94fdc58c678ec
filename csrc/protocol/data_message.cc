#include "protocol/data_message.h"

#include <cstring>
#include <string>

#include "base/numbers.h"
#include "protocol/codec_bytes.h"

namespace byteps::protocol {
namespace {

Result<DataType> data_type_from(uint8_t value) {
  if (value < 1 || value > 16) {
    return data_loss("data message: expected a type from 1 to 16, got " + std::to_string(value));
  }
  return static_cast<DataType>(value);
}

Result<Level> level_from(uint8_t value) {
  if (value < 1 || value > 3) return data_loss("level: expected 1 to 3, got " + std::to_string(value));
  return static_cast<Level>(value);
}

// Calls `number(offset, type on the wire, member)` for numbers (check_limits has their limits), and
// `checked(offset, member, function that checks a byte)` for codes. Version, key and shape are not
// among them. A Hello has a level where other heads have a placement. docs/wire-format.md has the
// same table.
template <typename Head, typename Number, typename Checked>
void for_each_field(Head& head, Number&& number, Checked&& checked) {
  checked(1, head.type, data_type_from);
  checked(2, head.dtype, dtype_from);
  checked(3, head.op, reduce_op_from);
  checked(4, head.code, status_code_from);
  checked(6, head.plan, plan_from);
  if (head.type == DataType::kHello) checked(5, head.level, level_from);
  if (head.type != DataType::kHello) number(5, uint8_t{}, head.plan.placement);
  number(7, uint8_t{}, head.staleness);
  number(8, uint32_t{}, head.epoch);
  number(20, int32_t{}, head.priority);
  number(24, uint64_t{}, head.round);
  number(32, uint64_t{}, head.bytes);
  number(40, uint16_t{}, head.rank);
  number(42, uint16_t{}, head.root);
  number(44, uint16_t{}, head.root_node);
  number(46, uint16_t{}, head.serving_index);
}
constexpr size_t kShapeOffset = 48;
static_assert(kShapeOffset + kShapeBytes == kDataHeadBytes);

// A key has 8 bytes: the lower 32 bits of the tensor, the partition, the rest of the tensor.
constexpr size_t kKeyOffset = 12;
constexpr int kPartitionBits = 18;
static_assert(kMaxPartitions == 1u << kPartitionBits);
static_assert(key_tensor(kMaxTensorNumber, kMaxPartitionScale) < 1ull << (64 - kPartitionBits));

void store_key(const Key& key, std::byte* at) {
  store_number(at, static_cast<uint32_t>(key.tensor));
  store_number(at + 4, static_cast<uint32_t>(key.tensor >> 32 << kPartitionBits | key.partition));
}
Key load_key(const std::byte* at) {
  const auto upper = load_number<uint32_t>(at + 4);
  return {.tensor = uint64_t{upper >> kPartitionBits} << 32 | load_number<uint32_t>(at),
          .partition = upper & (kMaxPartitions - 1)};
}

template <typename Enum>
uint8_t byte_of(Enum value) {
  return static_cast<uint8_t>(value);
}
uint8_t byte_of(const Plan& plan) { return encode(plan); }

Status check_limits(const DataHead& head) {
  auto above = [](const char* field, uint64_t value, uint64_t limit) {
    return data_loss(std::string("data message: ") + field + ": expected less than " + std::to_string(limit) +
                     ", got " + std::to_string(value));
  };
  if (head.rank >= kMaxNodes) return above("rank", head.rank, kMaxNodes);
  if (head.root >= kMaxNodes) return above("root", head.root, kMaxNodes);
  if (head.root_node >= kMaxNodes) return above("root node", head.root_node, kMaxNodes);
  if (head.bytes > kMaxTensorBytes) return above("bytes", head.bytes, kMaxTensorBytes + 1);
  if (head.bytes % size_of(head.dtype) != 0) {
    return data_loss("data message: expected a multiple of the element size of " +
                     std::string(to_string(head.dtype)) + ", got " + std::to_string(head.bytes) + " bytes");
  }
  if (head.staleness != 0 && !is_stored(head.op)) {
    return data_loss("data message: expected no staleness of a " + std::string(to_string(head.op)) +
                     ", got " + std::to_string(head.staleness));
  }
  const bool is_ok = head.code == StatusCode::kOk;
  if (head.type != DataType::kHeld && (head.type == DataType::kFailed) == is_ok) {
    return data_loss("data message: a failure needs a code that is not ok, and no other message has one");
  }
  return Status::ok();
}

}  // namespace

DataHeadBytes encode(const DataHead& head) {
  DataHeadBytes bytes{};
  store_number(&bytes[0], kProtocolVersion);
  for_each_field(
      head,
      [&](size_t offset, auto wire, auto value) {
        store_number(&bytes[offset], static_cast<decltype(wire)>(value));
      },
      [&](size_t offset, const auto& value, auto) { store_number(&bytes[offset], byte_of(value)); });
  store_key(head.key, &bytes[kKeyOffset]);
  std::memcpy(&bytes[kShapeOffset], head.shape.bytes().data(), kShapeBytes);
  return bytes;
}

Result<DataHead> decode_data(Bytes bytes) {
  BPS_RETURN_IF_ERROR(check_head_size(bytes, kDataHeadBytes));
  BPS_RETURN_IF_ERROR(check_version(load_number<uint8_t>(&bytes[0])));
  ShapeBytes shape;
  std::memcpy(shape.data(), &bytes[kShapeOffset], kShapeBytes);
  DataHead head{.key = load_key(&bytes[kKeyOffset]), .shape = Shape(shape)};
  Status status;  // the first error
  for_each_field(
      head,
      [&](size_t offset, auto wire, auto& value) { value = load_number<decltype(wire)>(&bytes[offset]); },
      [&](size_t offset, auto& value, auto from) {
        const auto read = from(load_number<uint8_t>(&bytes[offset]));
        if (read) value = *read;
        if (status.is_ok()) status = read.status();
      });
  BPS_RETURN_IF_ERROR(status);
  BPS_RETURN_IF_ERROR(check_limits(head));
  return head;
}

}  // namespace byteps::protocol
