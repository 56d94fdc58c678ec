// Every message of byteps, as values, and their bytes. The format is documented in docs/wire-format.md; the two
// change together, with kProtocolVersion.
//
// Pure. Decoding checks every bound before it allocates and returns kDataLoss with what was expected and got;
// no input makes it read outside its argument. Integers are little endian.
//
// Two families:
//   data     worker or machine service <-> summation service. All fields are in the frame's head (kDataHeadBytes); the payload is
//            tensor data (or the text of a failure).
//   control  node <-> scheduler. The head has the type; the fields are the payload (at most kMaxControlBytes).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"
#include "protocol/plan.h"
#include "protocol/shape.h"

namespace byteps::protocol {

inline constexpr uint8_t kProtocolVersion = 5;
inline constexpr size_t kDataHeadBytes = 64;
inline constexpr size_t kControlHeadBytes = 8;
inline constexpr size_t kMaxControlBytes = 4u << 20;
inline constexpr uint16_t kMaxNameBytes = 1024;
inline constexpr uint16_t kMaxTextBytes = 4096;  // of a failure; longer ones are cut
inline constexpr uint16_t kMaxHostBytes = 255;   // of a host, a machine, an address
inline constexpr uint32_t kMaxAddresses = 64;    // of a node
inline constexpr uint32_t kMaxHelpers = 64;      // of a process that measures its network card
inline constexpr uint64_t kMaxTensorBytes = 1ull << 40;
inline constexpr uint32_t kMaxPartitions = 1u << 18;
inline constexpr uint32_t kMaxNodes = 1u << 14;
inline constexpr uint64_t kMaxNicBytesPerS = 100'000'000'000'000;
inline constexpr uint64_t kMaxTimeoutUs = 1ull << 50;
inline constexpr int64_t kHeartbeatsPerTimeout = 4;  // that each node sends while the job's timeout passes

// Where a partition is summed; what the numbers mean is protocol/tree.h's.
struct RootLocation {
  uint16_t reducer_host = 0;
  uint16_t serving_index = 0;
  bool operator==(const RootLocation&) const = default;
};

// One partition of one declared tensor.
struct Key {
  uint32_t tensor = 0;  // key_tensor() of the number that the scheduler gave to the name, and of the cut
  uint32_t partition = 0;
  bool operator==(const Key&) const = default;
  auto operator<=>(const Key&) const = default;
};

inline constexpr uint32_t kMaxTensors = 1u << 20;
// A name that is cut in another way (protocol/plan.h) has other partitions, but for the first one.
constexpr uint32_t key_tensor(uint32_t number, uint8_t partition_scale) {
  return number * (kMaxPartitionScale + 1) + partition_scale;
}
constexpr uint32_t number_of(const Key& key) { return key.tensor / (kMaxPartitionScale + 1); }

// "tensor 3, partition 0".
std::string describe(const Key& key);
// "partition 0".
std::string describe_partition(const Key& key);

struct KeyHash {
  size_t operator()(const Key& key) const {
    return (static_cast<size_t>(key.tensor) * 0x9E3779B97F4A7C15ull) ^ key.partition;
  }
};

// ---- data -------------------------------------------------------------------------------------------------

enum class DataType : uint8_t {
  kHello = 1,     // child -> service, first on a connection: `rank`, `level`, `lane`
  kPushPull = 2,  // child -> service: a contribution; payload: `bytes` (none unless has_values)
  kResult = 3,    // service -> child: payload: `bytes`
  kFailed = 4,    // either way, instead of a result or a contribution: `code`; payload: text
  kGoodbye = 5,   // either way: nothing follows; the sender leaves the job in order
  kProbe = 6,  // either way, to measure a card (protocol/nic_probe): `epoch`; payload: `bytes`, of no meaning
};

// Which of a service's levels a connection speaks to (protocol/tree.h).
enum class Level : uint8_t {
  kMachine = 1,  // the children are the ranks of the service's own machine
  kCluster = 2,  // the children are the machines, each spoken for by one of its ranks
  kRanks = 3,  // the children are all ranks, each for itself: of what is kept (protocol/staleness_tracker.h)
};

// Of rounds that a rank may be ahead of the slowest one (protocol/staleness_tracker.h): any number.
inline constexpr uint8_t kUnboundedStaleness = 255;

// Whether services keep a tensor's value from one push_pull to the next (ReduceOp::kSeed, kAccumulate).
struct TensorMode {
  bool stored = false;
  uint8_t staleness = 0;  // only of what is kept
  bool operator==(const TensorMode&) const = default;
};

// "reduces it", "keeps it with staleness 3", "keeps it with unbounded staleness".
std::string describe(const TensorMode& mode);

struct DataHead {
  DataType type = DataType::kHello;
  Level level = Level::kCluster;  // of a hello
  // Of rank 0's contribution, and of the results: what the next push_pull of the tensor follows. Of others: unused.
  Plan plan = {};
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint8_t staleness = 0;  // kSeed, kAccumulate
  uint32_t epoch = 0;
  Key key;
  uint64_t round = 0;        // counts this rank's push_pulls of the name from 1, also those that were refused
  uint32_t rank = 0;         // the contributing worker, or who speaks for its machine
  int32_t priority = 0;      // larger goes first
  uint32_t root = 0;         // kBroadcast, kSeed: whose values count; kAccumulate: as in kSeed
  uint16_t root_node = 0;    // node that hosts the root of the partition's tree
  uint16_t shard_index = 0;  // of the partition (Tree::lane); of a hello: the sender's shard
  uint64_t bytes = 0;        // of the partition
  Shape shape = {};          // of the tensor
  StatusCode code = StatusCode::kOk;
  bool operator==(const DataHead&) const = default;
};

// Whether the contribution of `head.rank` has a payload: only the root's has if only the root's values count.
inline bool has_values(const DataHead& head) {
  const bool only_of_root = head.op == ReduceOp::kBroadcast || head.op == ReduceOp::kSeed;
  return !only_of_root || head.root == head.rank;
}

using DataHeadBytes = std::array<std::byte, kDataHeadBytes>;
DataHeadBytes encode(const DataHead& head);
// Checks version, type, dtype, op, the limits, that `bytes` is a multiple of the element size, that `code` is a
// failure in kFailed and ok elsewhere, and that only what is kept has a staleness.
Result<DataHead> decode_data(Bytes head);

// ---- control ----------------------------------------------------------------------------------------------

enum class Role : uint8_t { kWorker = 1, kServer = 2 };

// What a node tells of itself. Workers host a summation service as well, so they have addresses, too.
struct NodeInfo {
  Role role = Role::kWorker;
  int32_t rank = -1;        // of a worker, or number of a server; -1 in a Join: number me
  int32_t local_rank = -1;  // -1 in a Join: number me by machine
  int32_t local_size = -1;
  uint64_t pid = 0;
  std::string host;                    // for people
  std::string machine;                 // equal on all processes that can share memory
  uint32_t nic_mbps = 0;               // each way, Mbit/s; 0: not known
  std::vector<std::string> addresses;  // of the service's shards, "ip:port", in order
  // Of the same shards for processes of the same machine; empty: none.
  std::vector<std::string> local_addresses;
  // Of the same shards by RDMA, "ip:port"; empty: not by RDMA.
  std::vector<std::string> rdma_addresses;
  bool operator==(const NodeInfo&) const = default;

  // "rank 3 (host node7, pid 1234)", "server 0 (host …)".
  std::string describe() const;
};

struct Join {  // node -> scheduler
  NodeInfo self;
  uint32_t num_workers = 0;  // as this node was told; 0: not told
  uint32_t num_servers = 0;
  std::string version;  // of the package; all nodes have the same
  bool operator==(const Join&) const = default;
};
// scheduler -> node: the job is complete. Nodes are ordered: workers by rank, then servers by number. A node's
// place in the list is its node number and its service number. Decoding checks the order.
struct Roster {
  uint32_t epoch = 0;
  uint32_t self = 0;  // the addressee's node number
  uint32_t num_workers = 0;
  uint64_t timeout_us = 0;       // a node silent for so long is lost
  uint64_t partition_bytes = 0;  // of PartitionRule
  // Of each reducer_host (protocol/tree.h) in all that is summed, in parts per billion: for the rates of connections.
  std::vector<uint32_t> shares_ppb;
  std::vector<NodeInfo> nodes;
  bool operator==(const Roster&) const = default;
};
struct Declare {  // worker -> scheduler: asks for the places of a tensor of this size; again where it grows
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t bytes = 0;
  uint8_t partition_scale = 0;  // of a Plan; others than 0 for names that are placed already
  TensorMode mode = {};
  bool operator==(const Declare&) const = default;
};
struct Placed {  // scheduler -> worker
  std::string name;
  uint32_t tensor = 0;               // number of the name, from 1
  std::vector<RootLocation> places;  // by partition; enough for all sizes that anybody has asked for
  uint8_t partition_scale = 0;       // as it was asked for; each has other places, but of the first partition
  bool operator==(const Placed&) const = default;
};
inline constexpr uint64_t kEveryRound = UINT64_MAX;

// scheduler -> worker: the name cannot be used. Where others may wait in a round of it, to all nodes: summation
// services fail the contributions to its rounds up to `round`.
struct Refused {
  std::string name;
  uint32_t tensor = 0;  // 0: the name was never bound
  StatusCode code = StatusCode::kInvalidArgument;
  std::string text;
  uint64_t round = kEveryRound;
  bool operator==(const Refused&) const = default;
};
// worker -> scheduler: this rank's push_pull of the name has failed; so have those of all ranks in that round.
struct RoundFailed {
  std::string name;
  uint64_t round = 0;
  bool refused = false;  // this rank did not begin it: `text` says why
  StatusCode code = StatusCode::kInvalidArgument;
  std::string text;
  bool operator==(const RoundFailed&) const = default;
};
struct Barrier {          // worker -> scheduler
  uint32_t sequence = 0;  // counts this worker's barriers from 1
  bool operator==(const Barrier&) const = default;
};
struct BarrierDone {  // scheduler -> worker
  uint32_t sequence = 0;
  StatusCode code = StatusCode::kOk;
  std::string text;
  bool operator==(const BarrierDone&) const = default;
};
struct Heartbeat {  // node -> scheduler, which answers with the same
  bool operator==(const Heartbeat&) const = default;
};
// node -> scheduler: my connection to `node` broke; of itself: a part of me hangs
struct Suspect {
  uint32_t node = 0;
  std::string text;
  bool operator==(const Suspect&) const = default;
};
struct Lost {  // scheduler -> node: the job has failed
  StatusCode code = StatusCode::kUnavailable;
  std::string text;  // names the guilty rank, host and cause
  bool operator==(const Lost&) const = default;
};
struct Leave {  // node -> scheduler
  std::string
      cause;  // what ends this process, such as an exception: the job fails by it; empty: it goes in order
  bool operator==(const Leave&) const = default;
};
struct Left {  // scheduler -> node
  uint32_t epoch = 0;
  uint32_t node = 0;
  bool operator==(const Left&) const = default;
};
struct Finished {  // scheduler -> node: all workers have left, or the scheduler's own process leaves in order
  std::string text;
  bool operator==(const Finished&) const = default;
};
// How network cards are measured before the job starts: protocol/nic_survey.h.
struct ProbeSetup {    // scheduler -> node: listen for probes, which carry this epoch
  uint32_t epoch = 0;  // of the roster to come
  bool operator==(const ProbeSetup&) const = default;
};
struct ProbeReady {                    // node -> scheduler
  std::vector<std::string> addresses;  // of its threads, "ip:port"; none: its card cannot be measured
  bool operator==(const ProbeReady&) const = default;
};
struct ProbeHelper {
  std::vector<std::string> addresses;
  bool operator==(const ProbeHelper&) const = default;
};
struct ProbeStart {    // scheduler -> node: measure your card
  uint32_t round = 0;  // from 1
  std::vector<ProbeHelper> helpers;
  bool operator==(const ProbeStart&) const = default;
};
struct ProbeDone {  // node -> scheduler
  uint32_t round = 0;
  uint64_t bytes_per_s = 0;  // of payload, each way; 0: no idea
  bool operator==(const ProbeDone&) const = default;
};

struct Waits {        // worker -> scheduler
  std::string what;   // that a thread of it has been waiting for, for some seconds; empty: it has come
  bool asks = false;  // for a Waiting
  bool operator==(const Waits&) const = default;
};
struct Waiting {  // scheduler -> node: whom it waits for. To be logged
  std::string text;
  bool operator==(const Waiting&) const = default;
};

// node -> scheduler: its service has waited long for ranks; scheduler -> node: the same with the name, which services do
// not know. To be logged
struct Stalled {
  uint32_t tensor = 0;  // number of the name
  std::string name;     // empty: asked for, or not known
  std::string text;     // "round 3 of partition 0 has waited 30 s for rank 1 (host a, pid 7)"
  bool operator==(const Stalled&) const = default;

  // "tensor 'layer0': round 3 of partition 0 …".
  std::string describe() const;
};

// A node is about to leave in order, after an exception. From it to the scheduler, on to all others, who confirm it, and
// then back: from there on who waits for it knows why it does so in vain.
struct Leaving {
  uint32_t node = 0;
  std::string after;  // "KeyError: 'label'"
  bool operator==(const Leaving&) const = default;
};

// A message's place in this list gives its type on the wire: append only.
using Control = std::variant<Join, Roster, Declare, Placed, Refused, Barrier, BarrierDone, Heartbeat, Suspect,
                             Lost, Leave, Left, Finished, ProbeSetup, ProbeReady, ProbeStart, ProbeDone,
                             Waits, Waiting, RoundFailed, Stalled, Leaving>;

struct EncodedControl {
  std::array<std::byte, kControlHeadBytes> head;
  std::vector<std::byte> payload;
};
EncodedControl encode(const Control& message);
// Checks the head alone, before the payload is read: version, known type, payload size at most kMaxControlBytes.
Status check_control_head(Bytes head, size_t payload_bytes);
Result<Control> decode_control(Bytes head, Bytes payload);

}  // namespace byteps::protocol
