// Data messages: the head of a frame.
#include <cstring>
#include <string>

#include "base/numbers.h"
#include "protocol/codec_bytes.h"
#include "protocol/message.h"

namespace byteps::protocol {
namespace {

Result<DataType> data_type_from(uint8_t value) {
  if (value < 1 || value > 6) {
    return data_loss("data message: expected a type from 1 to 6, got " + std::to_string(value));
  }
  return static_cast<DataType>(value);
}

Result<Level> level_from(uint8_t value) {
  if (value < 1 || value > 3) return data_loss("level: expected 1 to 3, got " + std::to_string(value));
  return static_cast<Level>(value);
}

// Offsets of a data head's fields; docs/wire-format.md has the same table.
namespace at {
constexpr size_t kVersion = 0;
constexpr size_t kType = 1;
constexpr size_t kDtype = 2;
constexpr size_t kOp = 3;
constexpr size_t kCode = 4;
constexpr size_t kLevel = 5;
constexpr size_t kPlan = 6;
constexpr size_t kStaleness = 7;
constexpr size_t kEpoch = 8;
constexpr size_t kTensor = 12;
constexpr size_t kPartition = 16;
constexpr size_t kPriority = 20;
constexpr size_t kRound = 24;
constexpr size_t kBytes = 32;
constexpr size_t kRank = 40;
constexpr size_t kRoot = 42;
constexpr size_t kRootNode = 44;
constexpr size_t kShardIndex = 46;
constexpr size_t kShape = 48;
static_assert(kShape + kShapeBytes == kDataHeadBytes);
}  // namespace at

Status check_limits(const DataHead& head) {
  auto above = [](const char* field, uint64_t value, uint64_t limit) {
    return data_loss(std::string("data message: ") + field + ": expected less than " + std::to_string(limit) +
                     ", got " + std::to_string(value));
  };
  if (head.key.partition >= kMaxPartitions) return above("partition", head.key.partition, kMaxPartitions);
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
  if ((head.type == DataType::kFailed) == (head.code == StatusCode::kOk)) {
    return data_loss("data message: a failure needs a code that is not ok, and no other message has one");
  }
  return Status::ok();
}

}  // namespace

DataHeadBytes encode(const DataHead& head) {
  DataHeadBytes bytes{};
  store_number(&bytes[at::kVersion], kProtocolVersion);
  store_number(&bytes[at::kType], static_cast<uint8_t>(head.type));
  store_number(&bytes[at::kDtype], static_cast<uint8_t>(head.dtype));
  store_number(&bytes[at::kOp], static_cast<uint8_t>(head.op));
  store_number(&bytes[at::kCode], static_cast<uint8_t>(head.code));
  store_number(&bytes[at::kLevel], static_cast<uint8_t>(head.level));
  store_number(&bytes[at::kPlan], encode(head.plan));
  store_number(&bytes[at::kStaleness], head.staleness);
  store_number(&bytes[at::kEpoch], head.epoch);
  store_number(&bytes[at::kTensor], head.key.tensor);
  store_number(&bytes[at::kPartition], head.key.partition);
  store_number(&bytes[at::kRound], head.round);
  store_number(&bytes[at::kRank], static_cast<uint16_t>(head.rank));
  store_number(&bytes[at::kPriority], head.priority);
  store_number(&bytes[at::kRoot], static_cast<uint16_t>(head.root));
  store_number(&bytes[at::kRootNode], head.root_node);
  store_number(&bytes[at::kShardIndex], head.shard_index);
  store_number(&bytes[at::kBytes], head.bytes);
  std::memcpy(&bytes[at::kShape], head.shape.bytes().data(), kShapeBytes);
  return bytes;
}

Result<DataHead> decode_data(Bytes bytes) {
  BPS_RETURN_IF_ERROR(check_head_size(bytes, kDataHeadBytes));
  BPS_RETURN_IF_ERROR(check_version(load_number<uint8_t>(&bytes[at::kVersion])));
  Result<DataType> type = data_type_from(load_number<uint8_t>(&bytes[at::kType]));
  if (!type) return type.status();
  Result<DType> dtype = dtype_from(load_number<uint8_t>(&bytes[at::kDtype]));
  if (!dtype) return dtype.status();
  Result<ReduceOp> op = reduce_op_from(load_number<uint8_t>(&bytes[at::kOp]));
  if (!op) return op.status();
  Result<StatusCode> code = status_code_from(load_number<uint8_t>(&bytes[at::kCode]));
  if (!code) return code.status();
  Result<Level> level = level_from(load_number<uint8_t>(&bytes[at::kLevel]));
  if (!level) return level.status();
  Result<Plan> plan = plan_from(load_number<uint8_t>(&bytes[at::kPlan]));
  if (!plan) return plan.status();
  ShapeBytes shape;
  std::memcpy(shape.data(), &bytes[at::kShape], kShapeBytes);
  DataHead head{
      .type = *type,
      .level = *level,
      .plan = *plan,
      .dtype = *dtype,
      .op = *op,
      .staleness = load_number<uint8_t>(&bytes[at::kStaleness]),
      .epoch = load_number<uint32_t>(&bytes[at::kEpoch]),
      .key = {load_number<uint32_t>(&bytes[at::kTensor]), load_number<uint32_t>(&bytes[at::kPartition])},
      .round = load_number<uint64_t>(&bytes[at::kRound]),
      .rank = load_number<uint16_t>(&bytes[at::kRank]),
      .priority = load_number<int32_t>(&bytes[at::kPriority]),
      .root = load_number<uint16_t>(&bytes[at::kRoot]),
      .root_node = load_number<uint16_t>(&bytes[at::kRootNode]),
      .shard_index = load_number<uint16_t>(&bytes[at::kShardIndex]),
      .bytes = load_number<uint64_t>(&bytes[at::kBytes]),
      .shape = Shape(shape),
      .code = *code};
  BPS_RETURN_IF_ERROR(check_limits(head));
  return head;
}

}  // namespace byteps::protocol
