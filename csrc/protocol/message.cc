#include "protocol/message.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <iterator>
#include <utility>

#include "protocol/codec_bytes.h"

namespace byteps::protocol {
namespace {

Result<StatusCode> status_code_from(uint8_t value) {
  constexpr auto kLast = static_cast<uint8_t>(StatusCode::kInternal);
  if (value > kLast) {
    return data_loss("status: expected a code from 0 to " + std::to_string(kLast) + ", got " +
                     std::to_string(value));
  }
  return static_cast<StatusCode>(value);
}

Result<Role> role_from(uint8_t value) {
  if (value < 1 || value > 2) return data_loss("role: expected 1 or 2, got " + std::to_string(value));
  return static_cast<Role>(value);
}

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

Status check_version(uint8_t version) {
  if (version == kProtocolVersion) return Status::ok();
  return data_loss("message: expected protocol version " + std::to_string(kProtocolVersion) + ", got " +
                   std::to_string(version));
}

Status check_head_size(Bytes head, size_t expected_bytes) {
  if (head.size() == expected_bytes) return Status::ok();
  return data_loss("message: expected a head of " + std::to_string(expected_bytes) + " bytes, got " +
                   std::to_string(head.size()));
}

bool all_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Where the fields of a data head are; docs/wire-format.md has the same table.
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
constexpr size_t kTop = 44;
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
  if (head.root_node >= kMaxNodes) return above("top", head.root_node, kMaxNodes);
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

// ---- control: the fields of each message, once for both directions ------------------------------------------

template <typename T, typename U>
concept Either = std::same_as<std::remove_const_t<T>, U>;  // const when it is written

constexpr size_t kLeastNodeBytes =
    1 + 4 * sizeof(int32_t) + sizeof(uint64_t) + 2 * sizeof(uint16_t) + 3 * sizeof(uint32_t);
constexpr uint32_t kPartsPerBillion = 1'000'000'000;
constexpr int32_t kMaxNumber = kMaxNodes - 1;  // of a node or rank

template <typename Codec, typename Addresses>
void address_list(Codec& codec, Addresses& addresses) {
  codec.list("addresses", addresses, kMaxAddresses, sizeof(uint16_t),
             [](auto& each, auto& address) { each.text("address", address, kMaxHostBytes); });
}

template <typename Codec, Either<NodeInfo> M>
void fields(Codec& codec, M& m) {
  codec.enumeration("role", m.role, role_from);
  codec.number("rank", m.rank, -1, kMaxNumber);
  codec.number("local rank", m.local_rank, -1, kMaxNumber);
  codec.number("local size", m.local_size, -1, int32_t{kMaxNodes});
  codec.number("pid", m.pid);
  codec.text("host", m.host, kMaxHostBytes);
  codec.text("machine", m.machine, kMaxHostBytes);
  codec.number("network speed", m.nic_mbps);
  address_list(codec, m.addresses);
  address_list(codec, m.local_addresses);
  address_list(codec, m.rdma_addresses);
}

template <typename Codec, Either<Join> M>
void fields(Codec& codec, M& m) {
  fields(codec, m.self);
  codec.number("workers", m.num_workers);
  codec.number("servers", m.num_servers);
  codec.text("version", m.version, kMaxHostBytes);
}

// Workers by rank, then servers by number.
bool in_order(const Roster& roster) {
  for (size_t i = 0; i < roster.nodes.size(); ++i) {
    const NodeInfo& node = roster.nodes[i];
    bool is_worker = i < roster.num_workers;
    size_t number = is_worker ? i : i - roster.num_workers;
    if (node.role != (is_worker ? Role::kWorker : Role::kServer) ||
        node.rank != static_cast<int32_t>(number)) {
      return false;
    }
  }
  return true;
}

template <typename Codec, Either<Roster> M>
void fields(Codec& codec, M& m) {
  codec.number("epoch", m.epoch);
  codec.number("self", m.self);
  codec.number("workers", m.num_workers);
  codec.number("timeout", m.timeout_us, 1, kMaxTimeoutUs);
  codec.number("partition bytes", m.partition_bytes, 0, kMaxTensorBytes);
  codec.list("shares", m.shares_ppb, kMaxNodes, sizeof(uint32_t),
             [](auto& each, auto& share) { each.number("share", share, 0, kPartsPerBillion); });
  codec.list("nodes", m.nodes, kMaxNodes, kLeastNodeBytes,
             [](auto& each, auto& node) { fields(each, node); });
  codec.require(m.self < m.nodes.size(), "self is a node");
  codec.require(m.num_workers >= 1 && m.num_workers <= m.nodes.size(), "workers are nodes");
  codec.require(in_order(m), "nodes are in order");
}

template <typename Codec, Either<Declare> M>
void fields(Codec& codec, M& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.enumeration("dtype", m.dtype, dtype_from);
  codec.number("bytes", m.bytes, 0, kMaxTensorBytes);
  codec.number("cut", m.partition_scale, uint8_t{0}, kMaxPartitionScale);
  codec.flag("kept", m.mode.stored);
  codec.number("staleness", m.mode.staleness);
  codec.require(m.mode.stored || m.mode.staleness == 0, "only what is kept has a staleness");
}

template <typename Codec, Either<Placed> M>
void fields(Codec& codec, M& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("tensor", m.tensor, 1, kMaxTensors);
  codec.number("cut", m.partition_scale, uint8_t{0}, kMaxPartitionScale);
  codec.list("places", m.places, kMaxPartitions, 2 * sizeof(uint16_t), [](auto& each, auto& place) {
    each.number("reducer_host", place.reducer_host);
    each.number("turn", place.serving_index);
  });
}

template <typename Codec, Either<Refused> M>
void fields(Codec& codec, M& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("tensor", m.tensor);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.number("round", m.round, 1);
  codec.require(m.code != StatusCode::kOk, "a refusal is no success");
}

template <typename Codec, Either<RoundFailed> M>
void fields(Codec& codec, M& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("round", m.round, 1);
  codec.flag("refused", m.refused);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.require(m.code != StatusCode::kOk, "a failure is no success");
}

template <typename Codec, Either<Barrier> M>
void fields(Codec& codec, M& m) {
  codec.number("sequence", m.sequence, 1);
}

template <typename Codec, Either<BarrierDone> M>
void fields(Codec& codec, M& m) {
  codec.number("sequence", m.sequence, 1);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
}

template <typename Codec, Either<Suspect> M>
void fields(Codec& codec, M& m) {
  codec.number("node", m.node);
  codec.text("text", m.text, kMaxTextBytes);
}

template <typename Codec, Either<Lost> M>
void fields(Codec& codec, M& m) {
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.require(m.code != StatusCode::kOk, "a loss is no success");
}

template <typename Codec, Either<Leave> M>
void fields(Codec& codec, M& m) {
  codec.text("cause", m.cause, kMaxTextBytes);
}

template <typename Codec, Either<Left> M>
void fields(Codec& codec, M& m) {
  codec.number("epoch", m.epoch);
  codec.number("node", m.node);
}

template <typename Codec, Either<Finished> M>
void fields(Codec& codec, M& m) {
  codec.text("text", m.text, kMaxTextBytes);
}

template <typename Codec, Either<ProbeSetup> M>
void fields(Codec& codec, M& m) {
  codec.number("epoch", m.epoch);
}

template <typename Codec, Either<ProbeReady> M>
void fields(Codec& codec, M& m) {
  address_list(codec, m.addresses);
}

template <typename Codec, Either<ProbeStart> M>
void fields(Codec& codec, M& m) {
  codec.number("round", m.round, 1);
  codec.list("helpers", m.helpers, kMaxHelpers, sizeof(uint32_t),
             [](auto& each, auto& helper) { address_list(each, helper.addresses); });
}

template <typename Codec, Either<ProbeDone> M>
void fields(Codec& codec, M& m) {
  codec.number("round", m.round, 1);
  codec.number("rate", m.bytes_per_s, 0, kMaxNicBytesPerS);
}

template <typename Codec, Either<Waits> M>
void fields(Codec& codec, M& m) {
  codec.text("what", m.what, kMaxTextBytes);
  codec.flag("asks", m.asks);
}

template <typename Codec, Either<Waiting> M>
void fields(Codec& codec, M& m) {
  codec.text("text", m.text, kMaxTextBytes);
}

template <typename Codec, Either<Stalled> M>
void fields(Codec& codec, M& m) {
  codec.number("tensor", m.tensor);
  codec.text("name", m.name, kMaxNameBytes);
  codec.text("text", m.text, kMaxTextBytes);
}

template <typename Codec, Either<Leaving> M>
void fields(Codec& codec, M& m) {
  codec.number("node", m.node);
  codec.text("after", m.after, kMaxTextBytes);
}

template <typename Codec, Either<Heartbeat> M>
void fields(Codec& /*codec*/, M& /*message*/) {}

constexpr const char* kControlNames[] = {
    "Join",      "Roster", "Declare", "Placed",      "Refused",  "Barrier",    "BarrierDone", "Heartbeat",
    "Suspect",   "Lost",   "Leave",   "Left",        "Finished", "ProbeSetup", "ProbeReady",  "ProbeStart",
    "ProbeDone", "Waits",  "Waiting", "RoundFailed", "Stalled",  "Leaving"};
constexpr size_t kControlTypes = std::variant_size_v<Control>;
static_assert(std::size(kControlNames) == kControlTypes);
// The type of the first control message; far from the data types, so that neither is taken for the other.
constexpr uint8_t kFirstControlType = 0x41;

template <size_t Index>
Result<Control> decode_as(Bytes payload) {
  std::variant_alternative_t<Index, Control> message;
  ByteReader reader(payload, kControlNames[Index]);
  fields(reader, message);
  BPS_RETURN_IF_ERROR(reader.finish());
  return Control(std::move(message));
}

template <size_t... Indices>
Result<Control> decode_alternative(size_t index, Bytes payload, std::index_sequence<Indices...> /*all*/) {
  using Decode = Result<Control> (*)(Bytes);
  constexpr Decode kDecoders[] = {decode_as<Indices>...};
  return kDecoders[index](payload);
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
  store_number(&bytes[at::kTop], head.root_node);
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
      .root_node = load_number<uint16_t>(&bytes[at::kTop]),
      .shard_index = load_number<uint16_t>(&bytes[at::kShardIndex]),
      .bytes = load_number<uint64_t>(&bytes[at::kBytes]),
      .shape = Shape(shape),
      .code = *code};
  BPS_RETURN_IF_ERROR(check_limits(head));
  return head;
}

EncodedControl encode(const Control& message) {
  EncodedControl encoded{};
  encoded.head[0] = static_cast<std::byte>(kProtocolVersion);
  encoded.head[1] = static_cast<std::byte>(kFirstControlType + message.index());
  ByteWriter writer(encoded.payload);
  std::visit([&](const auto& m) { fields(writer, m); }, message);
  return encoded;
}

Status check_control_head(Bytes head, size_t payload_bytes) {
  BPS_RETURN_IF_ERROR(check_head_size(head, kControlHeadBytes));
  BPS_RETURN_IF_ERROR(check_version(load_number<uint8_t>(&head[0])));
  auto type = load_number<uint8_t>(&head[1]);
  if (type < kFirstControlType || type >= kFirstControlType + kControlTypes) {
    return data_loss("control message: expected a type from " + std::to_string(kFirstControlType) + " to " +
                     std::to_string(kFirstControlType + kControlTypes - 1) + ", got " + std::to_string(type));
  }
  if (!all_zero(head.subspan(2))) return data_loss("control message: expected reserved bytes to be 0");
  if (payload_bytes > kMaxControlBytes) {
    return data_loss(std::string(kControlNames[type - kFirstControlType]) + ": expected at most " +
                     std::to_string(kMaxControlBytes) + " bytes, got " + std::to_string(payload_bytes));
  }
  return Status::ok();
}

Result<Control> decode_control(Bytes head, Bytes payload) {
  BPS_RETURN_IF_ERROR(check_control_head(head, payload.size()));
  size_t index = load_number<uint8_t>(&head[1]) - kFirstControlType;
  return decode_alternative(index, payload, std::make_index_sequence<kControlTypes>());
}

std::string describe(const Key& key) {
  return "tensor " + std::to_string(key.tensor) + ", " + describe_partition(key);
}

std::string describe_partition(const Key& key) { return "partition " + std::to_string(key.partition); }

std::string describe(const TensorMode& mode) {
  if (!mode.stored) return "reduces it";
  if (mode.staleness == kUnboundedStaleness) return "keeps it with unbounded staleness";
  return "keeps it with staleness " + std::to_string(mode.staleness);
}

std::string Stalled::describe() const {
  return "tensor " + (name.empty() ? "number " + std::to_string(tensor) : "'" + name + "'") + ": " + text;
}

std::string NodeInfo::describe() const {
  std::string text = role == Role::kWorker ? (rank < 0 ? "worker" : "rank") : "server";
  if (rank >= 0) text += " " + std::to_string(rank);
  return text + " (host " + host + ", pid " + std::to_string(pid) + ")";
}

}  // namespace byteps::protocol
