// Control messages: one list of fields for each, which serves encoding and decoding.
#include <algorithm>
#include <concepts>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "protocol/codec_bytes.h"
#include "protocol/message.h"

namespace byteps::protocol {
namespace {

Result<Role> role_from(uint8_t value) {
  if (value < 1 || value > 2) return data_loss("role: expected 1 or 2, got " + std::to_string(value));
  return static_cast<Role>(value);
}

template <typename T, typename... Messages>
concept One = (std::same_as<std::remove_const_t<T>, Messages> || ...);  // const while encoding

constexpr size_t kLeastNodeBytes =
    2 + 5 * sizeof(int32_t) + sizeof(uint64_t) + 2 * sizeof(uint16_t) + sizeof(uint32_t);
constexpr size_t kLeastEndpointBytes = sizeof(uint16_t) + sizeof(uint32_t);
constexpr uint32_t kPartsPerBillion = 1'000'000'000;
constexpr int32_t kMaxNumber = kMaxNodes - 1;  // largest number of a node or rank

void address_list(auto& codec, auto& addresses) {
  codec.list("addresses", addresses, kMaxAddresses, sizeof(uint16_t),
             [](auto& each, auto& address) { each.text("address", address, kMaxHostBytes); });
}

void share_list(auto& codec, auto& shares_ppb) {
  codec.list("shares", shares_ppb, kMaxNodes, sizeof(uint32_t),
             [](auto& each, auto& share) { each.number("share", share, 0, kPartsPerBillion); });
}

void fields(auto& codec, One<NodeInfo> auto& m) {
  codec.enumeration("role", m.role, role_from);
  codec.number("rank", m.rank, -1, kMaxNumber);
  codec.number("local rank", m.local_rank, -1, kMaxNumber);
  codec.number("local size", m.local_size, -1, int32_t{kMaxNodes});
  codec.number("pid", m.pid);
  codec.text("host", m.host, kMaxHostBytes);
  codec.text("machine", m.machine, kMaxHostBytes);
  codec.number("network speed", m.nic_mbps);
  codec.flag("told", m.nic_is_told);
  codec.number("threads", m.num_threads, 1, kMaxAddresses);
  codec.list("endpoints", m.endpoints, kMaxEndpoints, kLeastEndpointBytes, [](auto& each, auto& endpoint) {
    each.text("transport", endpoint.transport, kMaxTransportBytes);
    address_list(each, endpoint.addresses);
  });
  codec.require(std::ranges::all_of(
                    m.endpoints,
                    [&m](const Endpoint& endpoint) { return endpoint.addresses.size() == m.num_shards(); }),
                "every transport has an address for each shard");
}

void fields(auto& codec, One<Join> auto& m) {
  fields(codec, m.self);
  codec.number("workers", m.num_workers);
  codec.number("servers", m.num_servers);
  codec.text("version", m.version, kMaxHostBytes);
}

// Workers by rank, then servers by number.
bool in_order(const Roster& roster) {
  for (size_t i = 0; i < roster.nodes.size(); ++i) {
    const NodeInfo& node = roster.nodes[i];
    const bool is_worker = i < roster.num_workers;
    const size_t number = is_worker ? i : i - roster.num_workers;
    if (node.role != (is_worker ? Role::kWorker : Role::kServer)) return false;
    if (node.rank != static_cast<int32_t>(number)) return false;
  }
  return true;
}

void fields(auto& codec, One<Roster> auto& m) {
  codec.number("epoch", m.epoch);
  codec.number("workers", m.num_workers);
  codec.number("timeout", m.timeout_us, 1, kMaxTimeoutUs);
  codec.number("partition bytes", m.partition_bytes, 0, kMaxTensorBytes);
  share_list(codec, m.shares_ppb);
  codec.number("report interval", m.report_us, 0, kMaxTimeoutUs);
  codec.flag("failover", m.failover);
  codec.flag("turns", m.takes_turns);
  codec.flag("standby", m.has_standby);
  codec.list("nodes", m.nodes, kMaxNodes, kLeastNodeBytes,
             [](auto& each, auto& node) { fields(each, node); });
  codec.number("added servers", m.num_added, 0, kMaxNodes);
  codec.list("lost servers", m.lost, kMaxNodes, sizeof(uint32_t),
             [](auto& each, auto& server) { each.number("lost server", server); });
  codec.require(m.num_workers >= 1 && m.num_workers <= m.nodes.size(), "workers are nodes");
  codec.require(m.num_added <= m.nodes.size() - m.num_workers, "added nodes are servers");
  codec.require(std::ranges::all_of(
                    m.lost, [&m](uint32_t node) { return node >= m.num_workers && node < m.nodes.size(); }),
                "lost nodes are servers");
  codec.require(in_order(m), "nodes are in order");
}

void fields(auto& codec, One<Declare> auto& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.enumeration("dtype", m.dtype, dtype_from);
  codec.number("bytes", m.bytes, 0, kMaxTensorBytes);
  codec.number("partition scale", m.partition_scale, uint8_t{0}, kMaxPartitionScale);
  codec.flag("stored", m.mode.stored);
  codec.number("staleness", m.mode.staleness);
  codec.number("placement", m.placement);
  codec.require(m.mode.stored || m.mode.staleness == 0, "only stored tensors have a staleness");
}

void fields(auto& codec, One<Placed> auto& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("tensor", m.tensor, 1, kMaxTensorNumber);
  codec.number("partition scale", m.partition_scale, uint8_t{0}, kMaxPartitionScale);
  codec.number("placement", m.placement);
  codec.list("locations", m.locations, kMaxPartitions, 2 * sizeof(uint16_t), [](auto& each, auto& location) {
    each.number("reducer host", location.reducer_host);
    each.number("serving index", location.serving_index);
  });
  codec.number("round", m.round);
  codec.plan("plan", m.plan);
}

void fields(auto& codec, One<Refused> auto& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("tensor", m.tensor);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.number("round", m.round, 1);
  codec.require(m.code != StatusCode::kOk, "the code of a refusal is a failure");
}

void fields(auto& codec, One<RoundFailed> auto& m) {
  codec.text("name", m.name, kMaxNameBytes);
  codec.number("round", m.round, 1);
  codec.flag("refused", m.refused);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.number("calls", m.calls);
  codec.require(m.code != StatusCode::kOk, "the code of a failed round is a failure");
}

void fields(auto& codec, One<Barrier> auto& m) { codec.number("sequence", m.sequence, 1); }

void fields(auto& codec, One<BarrierDone> auto& m) {
  codec.number("sequence", m.sequence, 1);
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Suspect> auto& m) {
  codec.number("node", m.node);
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Lost> auto& m) {
  codec.enumeration("code", m.code, status_code_from);
  codec.text("text", m.text, kMaxTextBytes);
  codec.require(m.code != StatusCode::kOk, "the code of a loss is a failure");
}

void fields(auto& codec, One<Leave> auto& m) { codec.text("cause", m.cause, kMaxTextBytes); }

void fields(auto& codec, One<Left> auto& m) {
  codec.number("epoch", m.epoch);
  codec.number("node", m.node);
}

void fields(auto& codec, One<ProbeSetup> auto& m) { codec.number("epoch", m.epoch); }

void fields(auto& codec, One<ProbeReady> auto& m) { address_list(codec, m.addresses); }

void fields(auto& codec, One<ProbeStart> auto& m) {
  codec.number("round", m.round, 1);
  codec.number("connections", m.connections, 1, kMaxAddresses);
  codec.list("helpers", m.helpers, kMaxHelpers, sizeof(uint32_t),
             [](auto& each, auto& helper) { address_list(each, helper.addresses); });
}

void fields(auto& codec, One<ProbeDone> auto& m) {
  codec.number("round", m.round, 1);
  codec.number("rate", m.bytes_per_s, 0, kMaxNicBytesPerS);
  codec.number("round trip", m.rtt_us, 0, kMaxRoundTripUs);
  codec.number("bytes sent again", m.resent_ppm);
}

void fields(auto& codec, One<Waits> auto& m) {
  codec.text("what", m.what, kMaxTextBytes);
  codec.flag("asks", m.asks);
}

void fields(auto& codec, One<Finished, Waiting> auto& m) { codec.text("text", m.text, kMaxTextBytes); }

void fields(auto& codec, One<Stalled> auto& m) {
  codec.number("tensor", m.tensor);
  codec.text("name", m.name, kMaxNameBytes);
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Leaving> auto& m) {
  codec.number("node", m.node);
  codec.text("after", m.after, kMaxTextBytes);
}

void fields(auto& codec, One<Forget> auto& m) {
  constexpr size_t kLeastBytes = sizeof(uint16_t) + 2 * sizeof(uint64_t) + 2 * sizeof(uint8_t);
  codec.list("names", m.names, kMaxForgotten, kLeastBytes, [](auto& each, auto& forgotten) {
    each.text("name", forgotten.name, kMaxNameBytes);
    each.number("round", forgotten.round);
    each.number("calls", forgotten.calls);
    each.plan("plan", forgotten.plan);
  });
}

void fields(auto& codec, One<Forgotten> auto& m) {
  constexpr size_t kLeastBytes = sizeof(uint64_t) + sizeof(uint32_t);
  constexpr uint32_t kMaxKeys = kMaxForgotten * (kMaxPartitionScale + 1);
  codec.list("keys", m.keys, kMaxKeys, kLeastBytes, [](auto& each, auto& keys) {
    each.number("tensor", keys.tensor, 1, key_tensor(kMaxTensorNumber, kMaxPartitionScale));
    each.number("partitions", keys.partitions, 0, kMaxPartitions);
  });
}

void fields(auto& codec, One<Traffic> auto& m) {
  constexpr size_t kFlowBytes = sizeof(uint32_t) + 1 + 2 * sizeof(uint64_t);
  codec.list("flows", m.flows, 2 * kMaxNodes, kFlowBytes, [](auto& each, auto& flow) {
    each.number("node", flow.node, 0, uint32_t{kMaxNumber});
    each.flag("answers", flow.answers);
    each.number("bytes", flow.bytes);
    each.number("busy time", flow.busy_us, 0, kMaxTimeoutUs);
  });
}

void fields(auto& codec, One<Speeds> auto& m) {
  codec.number("placement", m.placement);
  codec.list("network speeds", m.nic_mbps, kMaxNodes, sizeof(uint32_t),
             [](auto& each, auto& mbps) { each.number("network speed", mbps); });
  share_list(codec, m.shares_ppb);
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Removed> auto& m) {
  codec.number("node", m.node);
  codec.text("text", m.text, kMaxTextBytes);
  share_list(codec, m.weights_ppb);
  codec.flag("stores", m.stores);
}

void fields(auto& codec, One<Added> auto& m) {
  fields(codec, m.server);
  codec.require(m.server.role == Role::kServer && m.server.rank >= 0, "the node is a server with a number");
}

void fields(auto& codec, One<Lingers> auto& m) { codec.number("node", m.node); }

void fields(auto& codec, One<Heartbeat, Resumed> auto& m) { codec.number("received", m.received); }

void fields(auto& codec, One<Standby> auto& m) { codec.text("address", m.address, kMaxHostBytes); }

void fields(auto& codec, One<Replicate> auto& m) {
  codec.number("number", m.number);
  codec.blob("content", m.content, kMaxReplicateBytes);
}

void fields(auto& codec, One<Replicated> auto& m) { codec.number("number", m.number); }

void fields(auto& codec, One<Rejoin> auto& m) {
  codec.number("epoch", m.epoch);
  codec.number("node", m.node, 0, uint32_t{kMaxNumber});
  codec.number("received", m.received);
}

void fields(auto& codec, One<Enrol> auto& m) {
  codec.number("pid", m.pid);
  codec.text("host", m.host, kMaxHostBytes);
  codec.text("version", m.version, kMaxHostBytes);
}

void fields(auto& codec, One<Enrolled> auto& m) {
  codec.number("member", m.member, 1, uint32_t{kMaxNodes});
  codec.number("timeout", m.timeout_us, 1, kMaxTimeoutUs);
}

void fields(auto& codec, One<Form> auto& m) {
  codec.number("generation", m.generation, 1);
  codec.number("epoch", m.epoch, 1);
  codec.list("members", m.members, kMaxNodes, sizeof(uint32_t),
             [](auto& each, auto& member) { each.number("member", member, 1, uint32_t{kMaxNodes}); });
  codec.text("scheduler", m.scheduler, kMaxHostBytes);
  codec.text("why", m.why, kMaxTextBytes);
  codec.require(m.epoch <= m.generation, "an epoch begins before its recoveries");
  codec.require(!m.members.empty(), "a generation has members");
}

void fields(auto& codec, One<Hosting> auto& m) {
  codec.number("generation", m.generation, 1);
  codec.text("scheduler", m.scheduler, kMaxHostBytes);
}

void fields(auto& codec, One<Formed, Entered, Cancelled> auto& m) {
  codec.number("generation", m.generation, 1);
}

void fields(auto& codec, One<Broken> auto& m) {
  codec.number("generation", m.generation, 1);
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Resign> auto& m) {
  codec.text("cause", m.cause, kMaxTextBytes);
  codec.flag("others stay", m.others_stay);
}

void fields(auto& codec, One<Resigned> auto& m) {
  codec.number("member", m.member, 1, uint32_t{kMaxNodes});
  codec.text("text", m.text, kMaxTextBytes);
}

void fields(auto& codec, One<Missing> auto& m) { codec.number("workers", m.workers, 0, uint32_t{kMaxNodes}); }

void fields(auto& /*codec*/, One<AllLinger> auto& /*message*/) {}

constexpr const char* kControlNames[] = {
    "Join",       "Roster",     "Declare",   "Placed",    "Refused",    "Barrier",     "BarrierDone",
    "Heartbeat",  "Suspect",    "Lost",      "Leave",     "Left",       "Finished",    "ProbeSetup",
    "ProbeReady", "ProbeStart", "ProbeDone", "Waits",     "Waiting",    "RoundFailed", "Stalled",
    "Leaving",    "Forget",     "Forgotten", "Traffic",   "Speeds",     "Removed",     "Lingers",
    "AllLinger",  "Added",      "Standby",   "Replicate", "Replicated", "Rejoin",      "Resumed",
    "Enrol",      "Enrolled",   "Form",      "Hosting",   "Formed",     "Entered",     "Cancelled",
    "Broken",     "Resign",     "Resigned",  "Missing"};
constexpr size_t kControlTypes = std::variant_size_v<Control>;
static_assert(std::size(kControlNames) == kControlTypes);
// Type of the first control message; far from the data types, which must not be confused with it.
constexpr uint8_t kFirstControlType = 0x41;
constexpr uint8_t kRosterType = kFirstControlType + 1;
static_assert(std::is_same_v<std::variant_alternative_t<1, Control>, Roster>);
constexpr uint8_t kReplicateType = kFirstControlType + 31;
static_assert(std::is_same_v<std::variant_alternative_t<31, Control>, Replicate>);
constexpr size_t kSelfOffset = 4;  // of the receiver's number in the head of a Roster

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
  constexpr Result<Control> (*kDecoders[])(Bytes) = {decode_as<Indices>...};
  return kDecoders[index](payload);
}

}  // namespace

ControlHead roster_head(uint32_t self) {
  ControlHead head{};
  head[0] = static_cast<std::byte>(kProtocolVersion);
  head[1] = static_cast<std::byte>(kRosterType);
  store_number(&head[kSelfOffset], self);
  return head;
}

EncodedControl encode(const Control& message) {
  EncodedControl encoded{};
  encoded.head[0] = static_cast<std::byte>(kProtocolVersion);
  encoded.head[1] = static_cast<std::byte>(kFirstControlType + message.index());
  if (const auto* roster = std::get_if<Roster>(&message)) encoded.head = roster_head(roster->self);
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
  const bool is_roster = type == kRosterType;
  const Bytes reserved = is_roster ? head.subspan(2, kSelfOffset - 2) : head.subspan(2);
  if (std::ranges::any_of(reserved, [](std::byte each) { return each != std::byte{0}; }))
    return data_loss("control message: expected reserved bytes to be 0");
  const size_t max_bytes = is_roster                ? kMaxRosterBytes
                           : type == kReplicateType ? kMaxReplicateBytes
                                                    : kMaxControlBytes;
  if (payload_bytes > max_bytes) {
    return data_loss(std::string(kControlNames[type - kFirstControlType]) + ": expected at most " +
                     std::to_string(max_bytes) + " bytes, got " + std::to_string(payload_bytes));
  }
  return Status::ok();
}

Result<Control> decode_control(Bytes head, Bytes payload) {
  BPS_RETURN_IF_ERROR(check_control_head(head, payload.size()));
  size_t index = load_number<uint8_t>(&head[1]) - kFirstControlType;
  Result<Control> message = decode_alternative(index, payload, std::make_index_sequence<kControlTypes>());
  if (!message) return message;
  if (auto* roster = std::get_if<Roster>(&*message)) {
    roster->self = load_number<uint32_t>(&head[kSelfOffset]);
    if (roster->self >= roster->nodes.size()) {
      return data_loss("Roster: expected the number of a node below " + std::to_string(roster->nodes.size()) +
                       ", got " + std::to_string(roster->self));
    }
  }
  return message;
}

}  // namespace byteps::protocol
