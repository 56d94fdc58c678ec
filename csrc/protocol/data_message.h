// Data messages: worker or machine service <-> summation service. Part of message.h, which says what
// holds for all messages. All fields are in the frame's head; the payload is tensor data, or the
// text of a failure. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"
#include "protocol/plan.h"
#include "protocol/shape.h"

namespace byteps::protocol {

inline constexpr uint8_t kProtocolVersion = 17;
inline constexpr size_t kDataHeadBytes = 64;
inline constexpr uint16_t kMaxTextBytes = 4096;  // text of a failure; longer texts are truncated
inline constexpr uint64_t kMaxTensorBytes = 1ull << 40;
inline constexpr uint32_t kMaxPartitions = 1u << 18;
inline constexpr uint32_t kMaxNodes = 1u << 14;

// Where a partition is summed. protocol/tree.h defines the meaning of both numbers.
struct RootLocation {
  uint16_t reducer_host = 0;
  uint16_t serving_index = 0;
  bool operator==(const RootLocation&) const = default;
};

// One partition of one declared tensor.
struct Key {
  uint64_t tensor = 0;  // key_tensor() of the name's number and of the partition scale
  uint32_t partition = 0;
  bool operator==(const Key&) const = default;
  auto operator<=>(const Key&) const = default;
};

inline constexpr uint32_t kMaxTensors = 1u << 20;  // names that are not forgotten
// Numbers of names are never given again in a job, however many names come and go.
inline constexpr uint64_t kMaxTensorNumber = (1ull << 43) - 1;
// Under another partition scale a name has other partitions, except for the first one.
constexpr uint64_t key_tensor(uint64_t number, uint8_t partition_scale) {
  return number * (kMaxPartitionScale + 1) + partition_scale;
}
constexpr uint64_t number_of(const Key& key) { return key.tensor / (kMaxPartitionScale + 1); }

// "tensor 3, partition 0".
std::string describe(const Key& key);
// "partition 0".
std::string describe_partition(const Key& key);

struct KeyHash {
  size_t operator()(const Key& key) const { return (key.tensor * 0x9E3779B97F4A7C15ull) ^ key.partition; }
};

enum class DataType : uint8_t {
  kHello = 1,     // child -> service, first on a connection: `rank`, `level`
  kPushPull = 2,  // child -> service: a contribution; payload: `bytes` (none unless has_values)
  kResult = 3,    // service -> child: payload: `bytes`
  kFailed = 4,    // both directions, instead of a result or a contribution: `code`; payload: text
  kGoodbye = 5,   // both directions: nothing follows; the sender leaves the job in order
  // Both directions, to measure a card (protocol/nic_probe.h): `epoch`; payload: any `bytes`.
  kProbe = 6,
  // After the loss of a root (protocol/takeover.h), between a child and the root's successor:
  kMoved = 7,  // child -> service: as kPushPull, after the root to which it was to go was lost
  kHolds = 8,  // child -> service: the child has the result of the round, or knows that it failed
  kFetch = 9,  // service -> child: send it
  kHeld = 10,  // child -> service: as kResult, or as kFailed if `code` is not ok
  // Of stored tensors (protocol/stored_takeover.h); payload: a number (u64) for each rank, as in the
  // kHolds of such a tensor.
  kIncluded = 11,  // service -> child: the rounds that the next kResult contains
  kStated = 12,    // child -> service: it has said all kHolds after `round` losses of servers
  // Of a service that may be lost (protocol/answer_marks.h). `round`: number of the mark.
  kMark = 13,       // service -> child: all answers so far were sent before this
  kConfirmed = 14,  // child -> service: they have come
  kStable = 15,     // service -> child: all children have confirmed the mark
  kReleased = 16,   // child -> service: instead of kHolds, if the child released the result after that
};

// Whether it is a contribution.
constexpr bool is_contribution(DataType type) {
  return type == DataType::kPushPull || type == DataType::kMoved;
}

// The level of a service that a connection belongs to (protocol/tree.h).
enum class Level : uint8_t {
  kMachine = 1,  // the children are the ranks of the service's own machine
  kCluster = 2,  // the children are the machines, each represented by one of its ranks
  kRanks = 3,    // the children are all ranks: for stored tensors (protocol/staleness_tracker.h)
};

// No bound on the number of rounds between ranks (protocol/staleness_tracker.h).
inline constexpr uint8_t kUnboundedStaleness = 255;

// Whether services store a tensor's value between push_pulls (ReduceOp::kSeed, kAccumulate).
struct TensorMode {
  bool stored = false;
  uint8_t staleness = 0;  // only if stored
  bool operator==(const TensorMode&) const = default;
};

// "reduces it", "stores it with staleness 3", "stores it with unbounded staleness".
std::string describe(const TensorMode& mode);

struct DataHead {
  DataType type = DataType::kHello;
  Level level = Level::kCluster;  // kHello only
  // The plan of the tensor's next push_pull, in rank 0's contributions and in results. Else unused.
  Plan plan = {};
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint8_t staleness = 0;  // kSeed, kAccumulate
  uint32_t epoch = 0;
  Key key = {};
  // Number of this rank's push_pulls of the name, from 1, refused ones included.
  uint64_t round = 0;
  uint32_t rank = 0;     // the contributing worker, or the rank that represents its machine
  int32_t priority = 0;  // larger goes first
  // kBroadcast, kSeed: the rank whose values count; kAccumulate: as in kSeed.
  uint32_t root = 0;
  uint16_t root_node = 0;      // node that hosts the root of the partition's tree, if it is not lost
  uint16_t serving_index = 0;  // RootLocation::serving_index of the partition
  uint64_t bytes = 0;          // size of the partition
  Shape shape = {};            // shape of the tensor
  StatusCode code = StatusCode::kOk;
  bool operator==(const DataHead&) const = default;
};

// Whether the contribution of `head.rank` has a payload. Broadcasts have it from the root only.
inline bool has_values(const DataHead& head) {
  const bool only_of_root = head.op == ReduceOp::kBroadcast || head.op == ReduceOp::kSeed;
  return !only_of_root || head.root == head.rank;
}

using DataHeadBytes = std::array<std::byte, kDataHeadBytes>;
DataHeadBytes encode(const DataHead& head);
// Checks version, type, dtype, op, the limits, that `bytes` is a multiple of the element size, that
// `code` is a failure in kFailed, any in kHeld and ok elsewhere, and that only stored tensors have
// a staleness.
Result<DataHead> decode_data(Bytes head);

}  // namespace byteps::protocol
