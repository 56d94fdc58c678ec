// All messages of byteps as values, and their encoding. docs/wire-format.md documents the format;
// change both together, and kProtocolVersion with them.
//
// Pure. Decoding checks every bound before it allocates, never reads outside its argument, and
// returns kDataLoss with the expected and the actual value. Integers are little endian.
//
// Two families:
//   data     worker or machine service <-> summation service. All fields are in the frame's head
//            (kDataHeadBytes); the payload is tensor data, or the text of a failure.
//   control  node <-> scheduler. The head has the type; the fields are the payload (at most
//            kMaxControlBytes, but for a Roster and a Replicate).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"
#include "protocol/data_message.h"
#include "protocol/elastic_message.h"
#include "protocol/plan.h"

namespace byteps::protocol {

inline constexpr size_t kControlHeadBytes = 8;
inline constexpr size_t kMaxControlBytes = 4u << 20;
inline constexpr size_t kMaxRosterBytes = 32u << 20;  // of a Roster
// Of a Replicate, which contains a message.
inline constexpr size_t kMaxReplicateBytes = kMaxControlBytes + 4096;
inline constexpr uint16_t kMaxNameBytes = 1024;
// Size of the name of a host or machine, or of an address.
inline constexpr uint16_t kMaxHostBytes = 255;
inline constexpr uint32_t kMaxAddresses = 64;  // addresses of one node for one transport
inline constexpr uint32_t kMaxEndpoints = 8;   // transports of one node
inline constexpr uint16_t kMaxTransportBytes = 16;
// Helpers of one process that measures its network card.
inline constexpr uint32_t kMaxHelpers = 64;
inline constexpr uint64_t kMaxNicBytesPerS = 100'000'000'000'000;
// A minute: longer than the survey of network cards takes.
inline constexpr uint64_t kMaxRoundTripUs = 60'000'000;
inline constexpr uint64_t kMaxTimeoutUs = 1ull << 50;
// Heartbeats that each node sends within the job's timeout.
inline constexpr int64_t kHeartbeatsPerTimeout = 4;

enum class Role : uint8_t { kWorker = 1, kServer = 2 };

// How the shards of a node's service are reached by one transport.
struct Endpoint {
  std::string transport;               // its name, such as "tcp" (node/transports.h)
  std::vector<std::string> addresses;  // indexed by shard, for example "ip:port"
  bool operator==(const Endpoint&) const = default;
};

// A node's description of itself. Workers host a summation service, so they have endpoints as well.
struct NodeInfo {
  Role role = Role::kWorker;
  // Rank of a worker, or number of a server; -1 in a Join: the scheduler assigns it.
  int32_t rank = -1;
  int32_t local_rank = -1;  // -1 in a Join: the scheduler assigns it, by machine
  int32_t local_size = -1;
  uint64_t pid = 0;
  std::string host;          // host name for messages
  std::string machine;       // equal on all processes that can share memory
  uint32_t nic_mbps = 0;     // Mbit/s per direction; 0: unknown
  bool nic_is_told = false;  // nic_mbps is a setting, which nothing changes
  // Data loops of the node. A node whose card is to be measured offers more shards than loops in
  // its Join; the scheduler leaves those that the network needs (protocol/nic_survey.h).
  uint32_t num_threads = 1;
  std::vector<Endpoint> endpoints;  // one for each transport of the service
  bool operator==(const NodeInfo&) const = default;

  size_t num_shards() const { return endpoints.empty() ? 0 : endpoints.front().addresses.size(); }
  // Addresses of the shards for the transport `name`; empty: the service does not have it.
  std::span<const std::string> addresses(std::string_view name) const;
  // "rank 3 (host node7, pid 1234)", "server 0 (host …)".
  std::string describe() const;
};

struct Join {  // node -> scheduler
  NodeInfo self;
  uint32_t num_workers = 0;  // number configured on this node; 0: not configured
  uint32_t num_servers = 0;
  std::string version;  // version of the package; must be equal on all nodes
  bool operator==(const Join&) const = default;
};
// scheduler -> node: the job is complete. Workers come first, by rank, then servers, by number. The
// index of a node is its node number and the number of its service. Decoding checks the order.
struct Roster {
  uint32_t epoch = 0;
  uint32_t self = 0;  // node number of the receiver; in the head of the message
  uint32_t num_workers = 0;
  uint64_t timeout_us = 0;       // a node that is silent for this long is lost
  uint64_t partition_bytes = 0;  // fixed size of PartitionRule
  // Share of each reducer host (protocol/tree.h) in parts per billion; determines the rates of
  // pacing.
  std::vector<uint32_t> shares_ppb;
  uint64_t report_us = 0;  // time between two Traffics of a node; 0: none are sent
  // The job goes on when a server is lost (Removed): ranks hold the results of roots on servers.
  bool failover = false;
  // Contributions and answers between two workers take turns (Tree::take_turns).
  bool takes_turns = false;
  // A Standby follows; the job starts with it.
  bool has_standby = false;
  std::vector<NodeInfo> nodes;
  // Of a server that comes to the running job (Added): the number of such servers, which are the
  // last nodes, and the nodes that have been lost (Removed).
  uint32_t num_added = 0;
  std::vector<uint32_t> lost;
  bool operator==(const Roster&) const = default;
};
// worker -> scheduler: requests root locations for a tensor of this size; repeated when it grows.
struct Declare {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t bytes = 0;
  // Scale of a Plan; nonzero only for names that have been placed before.
  uint8_t partition_scale = 0;
  TensorMode mode = {};
  uint8_t placement = 0;  // of a Plan
  bool operator==(const Declare&) const = default;
};
struct Placed {  // scheduler -> worker
  std::string name;
  uint64_t tensor = 0;  // number of the name, from 1
  // One for each partition; enough for the largest size requested.
  std::vector<RootLocation> locations;
  // As requested. Each scale and placement has its own locations.
  uint8_t partition_scale = 0;
  uint8_t placement = 0;
  // Where this rank was when it forgot the name (Forget); 0 and no plan if it never knew it.
  uint64_t round = 0;
  Plan plan = {};
  bool operator==(const Placed&) const = default;
};
inline constexpr uint64_t kEveryRound = UINT64_MAX;

// scheduler -> worker: the name cannot be used. Sent to all nodes if others may wait in one of its
// rounds: summation services fail the contributions to its rounds up to `round`.
struct Refused {
  std::string name;
  uint64_t tensor = 0;  // 0: the name was never bound
  StatusCode code = StatusCode::kInvalidArgument;
  std::string text;
  uint64_t round = kEveryRound;
  bool operator==(const Refused&) const = default;
};
// worker -> scheduler: this rank's push_pull of the name has failed, and so has the round for all
// ranks.
struct RoundFailed {
  std::string name;
  uint64_t round = 0;
  bool refused = false;  // this rank did not start the push_pull; `text` says why
  StatusCode code = StatusCode::kInvalidArgument;
  std::string text;
  // Not 0: this rank has forgotten the name, or never knew it. `round` counts from 0 then, and so
  // many calls have been made since (protocol/rounds.h, resumed_round).
  uint64_t calls = 0;
  bool operator==(const RoundFailed&) const = default;
};
struct Barrier {          // worker -> scheduler
  uint32_t sequence = 0;  // number of this worker's barriers, from 1
  bool operator==(const Barrier&) const = default;
};
struct BarrierDone {  // scheduler -> worker
  uint32_t sequence = 0;
  StatusCode code = StatusCode::kOk;
  std::string text;
  bool operator==(const BarrierDone&) const = default;
};
struct Heartbeat {  // node -> scheduler, which answers with the same
  // Number of sequenced messages (is_sequenced) that the sender has got from the receiver, since the
  // node joined. Of a scheduler: that its standby has, too.
  uint64_t received = 0;
  bool operator==(const Heartbeat&) const = default;
};
// node -> scheduler: the connection to `node` broke. If `node` is the sender, one of its threads
// hangs.
struct Suspect {
  uint32_t node = 0;
  std::string text;
  bool operator==(const Suspect&) const = default;
};
struct Lost {  // scheduler -> node: the job has failed
  StatusCode code = StatusCode::kUnavailable;
  std::string text;  // names the failed rank, its host and the cause
  bool operator==(const Lost&) const = default;
};
struct Leave {  // node -> scheduler
  // The reason why the process ends, such as an exception: the job fails with it. Empty: it leaves
  // in order.
  std::string cause;
  bool operator==(const Leave&) const = default;
};
struct Left {  // scheduler -> node
  uint32_t epoch = 0;
  uint32_t node = 0;
  bool operator==(const Left&) const = default;
};
// scheduler -> node: all workers have left, or the scheduler's own process leaves in order.
struct Finished {
  std::string text;
  bool operator==(const Finished&) const = default;
};
// Measuring network cards before the job starts: protocol/nic_survey.h.
struct ProbeSetup {    // scheduler -> node: listen for probes, which carry this epoch
  uint32_t epoch = 0;  // epoch of the future roster
  bool operator==(const ProbeSetup&) const = default;
};
struct ProbeReady {
  // Addresses of its threads, "ip:port"; empty: the card cannot be measured.
  std::vector<std::string> addresses;
  bool operator==(const ProbeReady&) const = default;
};
struct ProbeHelper {
  std::vector<std::string> addresses;
  bool operator==(const ProbeHelper&) const = default;
};
struct ProbeStart {          // scheduler -> node: measure your card
  uint32_t round = 0;        // counts from 1
  uint32_t connections = 1;  // to each helper
  std::vector<ProbeHelper> helpers;
  bool operator==(const ProbeStart&) const = default;
};
struct ProbeDone {
  uint32_t round = 0;
  uint64_t bytes_per_s = 0;  // payload per direction; 0: unknown
  uint64_t rtt_us = 0;       // longest round trip to a helper; 0: unknown
  uint32_t resent_ppm = 0;   // bytes sent again per million bytes sent; 0: none, or unknown
  bool operator==(const ProbeDone&) const = default;
};

struct Waits {
  std::string what;   // a description of what it has been waiting for; empty: the wait is over
  bool asks = false;  // requests a Waiting
  bool operator==(const Waits&) const = default;
};
struct Waiting {  // scheduler -> node: which nodes it waits for. To be logged
  std::string text;
  bool operator==(const Waiting&) const = default;
};

// node -> scheduler: its service has waited long for some ranks. scheduler -> node: the same text
// with the name of the tensor, which services do not know; to be logged.
struct Stalled {
  uint64_t tensor = 0;  // number of the name
  std::string name;     // empty: requested, or unknown
  std::string text;     // "round 3 of partition 0 has waited 30 s for rank 1 (host a, pid 7)"
  bool operator==(const Stalled&) const = default;

  // "tensor 'layer0': round 3 of partition 0 …".
  std::string describe() const;
};

// A node is about to leave in order after an exception. It tells the scheduler, which forwards the
// message to all others, waits until they confirm it, and then sends it back. From then on the
// errors of ranks that wait for the node give this cause.
struct Leaving {
  uint32_t node = 0;
  std::string after;  // "KeyError: 'label'"
  bool operator==(const Leaving&) const = default;
};

// A name that a rank does not use any more and forgets (protocol/push_pull_table.h).
struct ForgottenName {
  std::string name;
  uint64_t round = 0;  // of the rank's last push_pull of the name; with `calls` as in RoundFailed
  uint64_t calls = 0;
  Plan plan = {};  // of the last result; not used with `calls`: the rank does not know it then
  bool operator==(const ForgottenName&) const = default;
};
inline constexpr uint32_t kMaxForgotten = 1024;
struct Forget {  // worker -> scheduler
  std::vector<ForgottenName> names;
  bool operator==(const Forget&) const = default;
};
// Partitions 0 to `partitions` - 1 of a tensor under one partition scale.
struct ForgottenKeys {
  uint64_t tensor = 0;  // as in Key
  uint32_t partitions = 0;
  bool operator==(const ForgottenKeys&) const = default;
};
// scheduler -> node: all ranks have forgotten these tensors. Nobody will contribute to them again.
struct Forgotten {
  std::vector<ForgottenKeys> keys;
  bool operator==(const Forgotten&) const = default;
};

// What one node has sent to another one in a window, over connections that use a network card.
struct Flow {
  uint32_t node = 0;     // the receiver
  bool answers = false;  // of this node's service; else contributions to the receiver's
  uint64_t bytes = 0;    // acknowledged by the receiver
  // Time with bytes to be sent or acknowledged, summed over the connections.
  uint64_t busy_us = 0;
  bool operator==(const Flow&) const = default;
};
struct Traffic {  // node -> scheduler, every Roster::report_us while there is traffic
  std::vector<Flow> flows;
  bool operator==(const Traffic&) const = default;
};
// scheduler -> node: what was learned from traffic (protocol/link_speeds.h). Replaces the speeds
// and shares of the Roster for pacing.
struct Speeds {
  uint8_t placement = 0;             // of the plans that rank 0 requests from now on
  std::vector<uint32_t> nic_mbps;    // by node
  std::vector<uint32_t> shares_ppb;  // as Roster::shares_ppb
  std::string text;                  // what has changed, for the log of rank 0
  bool operator==(const Speeds&) const = default;
};

// scheduler -> node: a server is lost, and the job goes on without it. Its partitions have other
// roots from now on (protocol/successors.h).
struct Removed {
  uint32_t node = 0;
  std::string text;  // names the server, its host and the cause
  // How its partitions are distributed: a weight for each reducer host, in parts per billion.
  std::vector<uint32_t> weights_ppb;
  // Services store tensors, so children have to say what they hold (protocol/stored_takeover.h).
  bool stores = false;
  bool operator==(const Removed&) const = default;
};

// scheduler -> node: a server has come to the running job. It has the next node number.
struct Added {
  NodeInfo server;
  bool operator==(const Added&) const = default;
};

// With Roster::failover: a worker that leaves in order stays until all workers want to leave, or a
// server that is lost would have been noticed: another worker may need a result that it holds. It
// tells the scheduler, which forwards the message to all nodes: the worker contributes to nothing
// any more.
struct Lingers {
  uint32_t node = 0;
  bool operator==(const Lingers&) const = default;
};
struct AllLinger {  // scheduler -> node: all workers linger or have left
  bool operator==(const AllLinger&) const = default;
};

// The standby of the scheduler, which takes its place if it is lost (protocol/standby.h).
// Rank 0 -> scheduler: rank 0 is ready to be it. scheduler -> node: there is one, or none any more.
struct Standby {
  std::string address;  // "ip:port"; empty: there is none
  bool operator==(const Standby&) const = default;
};
struct Replicate {                 // scheduler -> its standby
  uint64_t number = 0;             // counts from 0, which is SchedulerOptions; then events
  std::vector<std::byte> content;  // protocol/scheduler_event.h
  bool operator==(const Replicate&) const = default;
};
struct Replicated {  // standby -> scheduler: it has this one and all before
  uint64_t number = 0;
  bool operator==(const Replicated&) const = default;
};
// node -> standby, as the first message: the scheduler is lost.
struct Rejoin {
  uint32_t epoch = 0;
  uint32_t node = 0;
  uint64_t received = 0;  // as Heartbeat::received
  bool operator==(const Rejoin&) const = default;
};
// standby -> node: it is the scheduler now. The sequenced messages that the node lacks follow.
struct Resumed {
  uint64_t received = 0;  // as Heartbeat::received: the node sends the later ones again
  bool operator==(const Resumed&) const = default;
};

// The index of a message in this list determines its type on the wire: append only.
using Control =
    std::variant<Join, Roster, Declare, Placed, Refused, Barrier, BarrierDone, Heartbeat, Suspect, Lost,
                 Leave, Left, Finished, ProbeSetup, ProbeReady, ProbeStart, ProbeDone, Waits, Waiting,
                 RoundFailed, Stalled, Leaving, Forget, Forgotten, Traffic, Speeds, Removed, Lingers,
                 AllLinger, Added, Standby, Replicate, Replicated, Rejoin, Resumed, Enrol, Enrolled, Form,
                 Hosting, Formed, Entered, Cancelled, Broken, Resign, Resigned, Missing>;

template <typename... Types>
bool is_one_of(const Control& message) {
  return (std::holds_alternative<Types>(message) || ...);
}

using ControlHead = std::array<std::byte, kControlHeadBytes>;
// Messages that a standby takes over: it knows how many each node and the scheduler have exchanged.
inline bool is_sequenced(const Control& message) {
  return !is_one_of<Heartbeat, Replicate, Replicated, Rejoin, Resumed>(message);
}

struct EncodedControl {
  ControlHead head;
  std::vector<std::byte> payload;
};
EncodedControl encode(const Control& message);
// The head of a Roster to node `self`. Its payload is the same for all nodes.
ControlHead roster_head(uint32_t self);
// Checks the head alone, before the payload is received: version, known type, payload size.
Status check_control_head(Bytes head, size_t payload_bytes);
Result<Control> decode_control(Bytes head, Bytes payload);

}  // namespace byteps::protocol
