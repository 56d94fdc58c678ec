#include "protocol/scheduler_event.h"

#include <bit>
#include <utility>

#include "protocol/codec_bytes.h"

namespace byteps::protocol {
namespace {

Result<SchedulerEvent::Kind> kind_from(uint8_t value) {
  if (value < 1 || value > 4) return data_loss("kind: expected 1 to 4, got " + std::to_string(value));
  return static_cast<SchedulerEvent::Kind>(value);
}

Result<PlacementPolicy::Kind> policy_kind_from(uint8_t value) {
  if (value > 3) return data_loss("policy: expected 0 to 3, got " + std::to_string(value));
  return static_cast<PlacementPolicy::Kind>(value);
}

// An event as it travels.
struct Parts {
  SchedulerEvent::Kind kind = SchedulerEvent::Kind::kTick;
  uint64_t peer = 0;
  int64_t now_us = 0;
  uint64_t count = 0;
  StatusCode code = StatusCode::kOk;
  std::string text = {};
  std::vector<std::byte> head = {};
  std::vector<std::byte> payload = {};
};

void event_fields(auto& codec, auto& parts) {
  codec.enumeration("kind", parts.kind, kind_from);
  codec.number("peer", parts.peer);
  codec.number("time", parts.now_us);
  codec.number("count", parts.count);
  codec.enumeration("code", parts.code, status_code_from);
  codec.text("text", parts.text, kMaxTextBytes);
  codec.blob("head", parts.head, kControlHeadBytes);
  codec.blob("payload", parts.payload, kMaxControlBytes);
}

void weight_list(ByteWriter& writer, const std::vector<double>& weights) {
  writer.list("weights", weights, kMaxNodes, sizeof(uint64_t),
              [](auto& each, double weight) { each.number("weight", std::bit_cast<uint64_t>(weight)); });
}

void weight_list(ByteReader& reader, std::vector<double>& weights) {
  reader.list("weights", weights, kMaxNodes, sizeof(uint64_t), [](auto& each, double& weight) {
    uint64_t bits = 0;
    each.number("weight", bits);
    weight = std::bit_cast<double>(bits);
  });
}

void option_fields(auto& codec, auto& options) {
  codec.number("workers", options.num_workers);
  codec.number("servers", options.num_servers);
  codec.number("start timeout", options.start_timeout_us);
  codec.number("refusal timeout", options.refusal_timeout_us);
  codec.number("timeout", options.timeout_us);
  codec.number("operation timeout", options.op_timeout_us);
  codec.number("partition bytes", options.partition_bytes);
  codec.enumeration("policy", options.placement.kind, policy_kind_from);
  weight_list(codec, options.placement.weights);
  codec.flag("failover", options.failover);
  codec.flag("standby", options.has_standby);
  codec.flag("probe", options.probe_nics);
  codec.flag("fit shards", options.fit_shards);
  codec.number("long path", options.long_path_us);
  codec.number("report interval", options.report_us);
  codec.number("epoch", options.first_epoch);
}

}  // namespace

void apply(const SchedulerEvent& event, SchedulerState& state, SchedulerActions& actions) {
  switch (event.kind) {
    case SchedulerEvent::Kind::kMessage:
      return state.on_message(event.peer, event.message, event.now_us, actions);
    case SchedulerEvent::Kind::kClosed: return state.on_closed(event.peer, event.why, event.now_us, actions);
    case SchedulerEvent::Kind::kTick: return state.on_tick(event.now_us, actions);
    case SchedulerEvent::Kind::kHeartbeat:
      return state.on_message(event.peer, Heartbeat{event.count}, event.now_us, actions);
  }
}

std::vector<std::byte> encode(const SchedulerEvent& event) {
  Parts parts{.kind = event.kind,
              .peer = event.peer,
              .now_us = event.now_us,
              .count = event.count,
              .code = event.why.code(),
              .text = event.why.message()};
  if (event.kind == SchedulerEvent::Kind::kMessage) {
    EncodedControl message = encode(event.message);
    parts.head.assign(message.head.begin(), message.head.end());
    parts.payload = std::move(message.payload);
  }
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  event_fields(writer, std::as_const(parts));
  return bytes;
}

Result<SchedulerEvent> decode_event(Bytes bytes) {
  Parts parts;
  ByteReader reader(bytes, "event");
  event_fields(reader, parts);
  BPS_RETURN_IF_ERROR(reader.finish());
  SchedulerEvent event{.kind = parts.kind, .peer = parts.peer, .now_us = parts.now_us, .count = parts.count};
  if (parts.code != StatusCode::kOk) event.why = Status(parts.code, parts.text);
  if (event.kind != SchedulerEvent::Kind::kMessage) return event;
  Result<Control> message = decode_control(parts.head, parts.payload);
  if (!message) return message.status();
  event.message = std::move(*message);
  return event;
}

std::vector<std::byte> encode(const SchedulerOrigin& origin) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  option_fields(writer, origin.options);
  writer.number("time", origin.now_us);
  return bytes;
}

Result<SchedulerOrigin> decode_origin(Bytes bytes) {
  SchedulerOrigin origin;
  ByteReader reader(bytes, "options of the scheduler");
  option_fields(reader, origin.options);
  reader.number("time", origin.now_us);
  BPS_RETURN_IF_ERROR(reader.finish());
  return origin;
}

}  // namespace byteps::protocol
