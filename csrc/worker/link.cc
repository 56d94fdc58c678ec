#include "worker/link.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "base/copy.h"
#include "protocol/rounds.h"

namespace byteps::worker {

using protocol::DataHead;
using protocol::DataType;
using transport::Arrival;
using transport::Connection;
using transport::ReceiveBuffer;

namespace {

// A partition is sent again only after it was answered, as Payload::reuse_key requires.
uint64_t reuse_key_of(const protocol::Key& key) { return (key.tensor + 1) << 18 | key.partition; }
static_assert(protocol::kMaxPartitions == 1 << 18);

}  // namespace

Link::Link(LinkOptions options, Connector connector, protocol::Outbox& outbox, Metrics& metrics,
           LinkEvents& events)
    : options_(std::move(options)),
      connector_(std::move(connector)),
      metrics_(metrics),
      events_(events),
      outbox_(outbox),
      pacer_(options_.bytes_per_s) {}

void Link::enqueue(std::vector<OutgoingPartition> partitions) {
  if (!ended_.is_ok()) {
    refuse(std::move(partitions), ended_);
  } else if (moved_) {
    events_.on_partitions_moved(std::move(partitions));
  } else if (connection_) {
    offer(std::move(partitions));
  } else {
    std::ranges::move(partitions, std::back_inserter(early_));
    connect();
  }
}

void Link::refuse(std::vector<OutgoingPartition> partitions, const Status& why) {
  for (OutgoingPartition& outgoing : partitions) complete(std::move(outgoing), why);
}

void Link::say_holds(const std::vector<DataHead>& outcomes) {
  if (!ended_.is_ok()) return;
  if (moved_) return events_.on_outcomes_moved(outcomes);
  for (const DataHead& outcome : outcomes) {
    options_.held->move(outcome.key, outcome.round, this);
    if (!connection_) {
      early_holds_.push_back(outcome);
      continue;
    }
    const auto held = options_.held->find(outcome.key, outcome.round);
    DataHead head = outcome;
    head.type = held ? DataType::kHolds : DataType::kReleased;
    head.code = StatusCode::kOk;
    head.epoch = options_.epoch;
    head.rank = options_.rank;
    transport::Payload payload;
    if (held && held->rounds) payload = {.data = *held->rounds, .reply_space = {}, .keep = held->rounds};
    connection_->send(protocol::encode(head), payload, [keep = payload.keep](const Status&) {});
  }
  if (!connection_) connect();
}

void Link::say_stated(uint64_t losses) {
  if (!ended_.is_ok() || moved_) return;
  stated_ = losses;
  if (!connection_) return connect();
  const DataHead head{
      .type = DataType::kStated, .epoch = options_.epoch, .round = losses, .rank = options_.rank};
  connection_->send(protocol::encode(head), {}, nullptr);
}

void Link::offer(std::vector<OutgoingPartition> partitions) {
  const protocol::Outbox::Port::Batch batch(*port_);
  for (OutgoingPartition& outgoing : partitions) {
    // A failure must be sent before the next round of its key.
    const int32_t priority =
        outgoing.failure.is_ok() ? outgoing.head.priority : std::numeric_limits<int32_t>::max();
    const uint64_t bytes = outgoing.input.size();
    const uint64_t ticket = ++last_ticket_;
    offered_.emplace(ticket, std::move(outgoing));
    port_->push(priority, bytes, [this, ticket] { send_offered(ticket); });
  }
}

void Link::send_offered(uint64_t ticket) {
  OutgoingPartition outgoing = std::move(offered_.extract(ticket).mapped());
  outgoing.failure.is_ok() ? send(std::move(outgoing)) : send_failure(outgoing);
}

void Link::connect() {
  if (connecting_ || lost_ || moved_ || !ended_.is_ok()) return;
  connecting_ = true;
  connector_([this](auto connection) { on_connected(std::move(connection)); });
}

void Link::on_connected(Result<std::unique_ptr<Connection>> connection) {
  connecting_ = false;
  if (!ended_.is_ok() || moved_) return;
  if (!connection) return lose(connection.status());
  connection_ = std::move(*connection);
  connection_->limit_silence(options_.silence_us);
  connection_->start(this);
  const DataHead hello{
      .type = DataType::kHello, .level = options_.level, .epoch = options_.epoch, .rank = options_.rank};
  connection_->send(protocol::encode(hello), {}, nullptr);
  port_.emplace(outbox_, protocol::Outbox::Kind::kContribution);
  if (options_.takes_turns) port_->take_turns(*options_.takes_turns);
  say_holds(std::exchange(early_holds_, {}));
  if (stated_ > 0) say_stated(stated_);
  offer(std::exchange(early_, {}));
}

void Link::send(OutgoingPartition partition) {
  DataHead head = partition.head;
  head.epoch = options_.epoch;
  Unanswered& unanswered = unanswered_[head.key];
  unanswered = {std::move(partition), nullptr, nullptr};
  const OutgoingPartition& outgoing = unanswered.outgoing;
  const uint64_t bytes = outgoing.input.size();
  if (!connection_->is_local()) {
    add(metrics_.bytes_sent, bytes);
    if (const auto rate = pacer_.on_send(bytes, connection_->loop().now_us(), outbox_.burst()))
      connection_->pace(*rate);
  }
  const transport::Payload payload{.data = outgoing.input,
                                   .reply_space = options_.may_be_lost ? MutableBytes() : outgoing.output,
                                   .reuse_key = reuse_key_of(head.key),
                                   .is_cold = outgoing.is_cold,
                                   .is_answered_soon = outgoing.is_answered_soon};
  connection_->send(protocol::encode(head), payload, [this, bytes](const Status& status) {
    if (status.is_ok()) port_->sent(bytes);
  });
}

void Link::pace(uint64_t bytes_per_s) {
  const auto rate = pacer_.set_limit(bytes_per_s);
  if (rate && connection_) connection_->pace(*rate);
}

std::optional<transport::SentTraffic> Link::sent_traffic() {
  return connection_ ? connection_->sent_traffic() : std::nullopt;
}

void Link::send_failure(const OutgoingPartition& outgoing) {
  DataHead head = outgoing.head;
  head.type = DataType::kFailed;
  head.epoch = options_.epoch;
  head.code = outgoing.failure.code();
  const auto text =
      std::make_shared<const std::string>(outgoing.failure.message().substr(0, protocol::kMaxTextBytes));
  connection_->send(protocol::encode(head), {.data = as_bytes(*text), .reply_space = {}, .keep = text},
                    [text](const Status&) {});
}

Result<Link::Unanswered*> Link::find(const DataHead& head) {
  const auto found = unanswered_.find(head.key);
  if (found == unanswered_.end() || found->second.outgoing.head.round != head.round) {
    return data_loss(options_.service_text + " answered partition " + std::to_string(head.key.partition) +
                     " of tensor " + std::to_string(head.key.tensor) + " in " +
                     protocol::describe_round(head.round) + ", which is not waiting for an answer");
  }
  return &found->second;
}

Result<ReceiveBuffer> Link::on_head(Connection&, const Arrival& arrival) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (head->type == DataType::kFailed && arrival.payload_bytes <= protocol::kMaxTextBytes) {
    failure_text_.resize(arrival.payload_bytes);
    return ReceiveBuffer::at(std::as_writable_bytes(std::span(failure_text_)));
  }
  if (head->type != DataType::kResult && head->type != DataType::kIncluded)
    return data_loss("a service does not send this payload");
  Result<Unanswered*> waiting = find(*head);
  if (!waiting) return waiting.status();
  if (head->type == DataType::kIncluded) return place_included(**waiting, arrival.payload_bytes);
  const OutgoingPartition& outgoing = (*waiting)->outgoing;
  if (arrival.payload_bytes != outgoing.head.bytes) {
    return data_loss("result: expected " + std::to_string(outgoing.head.bytes) + " bytes, got " +
                     std::to_string(arrival.payload_bytes));
  }
  if (options_.may_be_lost) {
    HeldResults::Values& landing = (*waiting)->landing;
    landing = options_.held->memory_for(head->key, arrival.payload_bytes, is_stored(outgoing.head.op));
    return ReceiveBuffer::at({landing.get(), arrival.payload_bytes});
  }
  const bool is_cold = outgoing.is_cold && outgoing.on_part == nullptr;  // which may read it
  return is_cold ? ReceiveBuffer::at_cold(outgoing.output) : ReceiveBuffer::at(outgoing.output);
}

Result<ReceiveBuffer> Link::place_included(Unanswered& waiting, size_t payload_bytes) {
  const bool is_expected = options_.may_be_lost && is_stored(waiting.outgoing.head.op);
  if (!is_expected || payload_bytes > protocol::kMaxNodes * sizeof(uint64_t))
    return data_loss("a service does not send " + std::to_string(payload_bytes) + " bytes of rounds");
  const auto rounds = std::make_shared<std::vector<std::byte>>(payload_bytes);
  waiting.rounds = rounds;
  return ReceiveBuffer::at(*rounds);
}

Status Link::on_frame(Connection& connection, const Arrival& arrival, Bytes payload) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (!connection.is_local()) add(metrics_.bytes_received, payload.size());
  switch (head->type) {
    case DataType::kResult: return on_result(*head, payload);
    case DataType::kFetch: send_held(*head); return Status::ok();
    case DataType::kIncluded: return Status::ok();
    case DataType::kMark:
    case DataType::kStable: return on_mark(*head);
    case DataType::kFailed:
      if (head->code == StatusCode::kOk) return data_loss("a failure without a code");
      if (options_.may_be_lost && !is_stored(head->op) && find(*head))
        options_.held->keep(
            {.head = *head, .values = nullptr, .text = std::string(as_text(payload)), .at = this});
      return complete_answered(*head, Status(head->code, std::string(as_text(payload))));
    case DataType::kGoodbye:
      ended_ = unavailable(options_.service_text + " has left the job");
      return Status::ok();
    default: break;
  }
  return data_loss("a service does not send message type " + std::to_string(static_cast<int>(head->type)));
}

Status Link::on_result(const DataHead& head, Bytes payload) {
  Result<Unanswered*> waiting = find(head);
  if (!waiting) return waiting.status();
  const MutableBytes output = (*waiting)->outgoing.output;
  if (payload.size() != output.size())
    return data_loss("result: expected " + std::to_string(output.size()) + " bytes, got none");
  if (options_.may_be_lost) {
    if (is_stored((*waiting)->outgoing.head.op) && !(*waiting)->rounds)
      return data_loss("result: the service has not said what it contains");
    copy_bytes(output, payload);
    options_.held->keep({.head = head,
                         .values = std::move((*waiting)->landing),
                         .text = {},
                         .rounds = std::move((*waiting)->rounds),
                         .at = this});
  } else if (options_.held != nullptr) {
    options_.held->drop(head.key);
  }
  return complete_answered(head, head.plan);
}

Status Link::on_mark(const DataHead& head) {
  if (!options_.may_be_lost) return data_loss("a service that cannot be lost does not send marks");
  if (head.type == DataType::kStable) {
    if (head.round != mark_.number)
      return data_loss("stable: expected mark " + std::to_string(mark_.number) + ", got " +
                       std::to_string(head.round));
    options_.held->release(this, mark_.order_before);
    return Status::ok();
  }
  mark_ = {.number = head.round, .order = options_.held->last_order(), .order_before = mark_.order};
  DataHead confirmed = head;
  confirmed.type = DataType::kConfirmed;
  confirmed.rank = options_.rank;
  connection_->send(protocol::encode(confirmed), {}, nullptr);
  return Status::ok();
}

// The successor of a lost root asks for an outcome that this node has told of.
void Link::send_held(const DataHead& head) {
  const auto held = options_.held != nullptr ? options_.held->find(head.key, head.round) : std::nullopt;
  DataHead answer = held ? held->head : head;
  answer.type = DataType::kHeld;
  answer.epoch = options_.epoch;
  answer.rank = options_.rank;
  const auto text =
      std::make_shared<const std::string>(held ? held->text : "its result is not held any more");
  if (!held) answer.code = StatusCode::kDataLoss;
  add(metrics_.held_sent, 1);
  const bool is_failure = answer.code != StatusCode::kOk;
  transport::Payload payload{.data = as_bytes(*text), .reply_space = {}, .keep = text};
  if (!is_failure)
    payload = {.data = {held->values.get(), held->head.bytes}, .reply_space = {}, .keep = held->values};
  connection_->send(protocol::encode(answer), payload, [keep = payload.keep](const Status&) {});
}

void Link::fail_over() {
  if (moved_ || !ended_.is_ok()) return;
  moved_ = true;
  if (connection_) {
    port_->close();
    connection_->close();
    connection_.reset();
  }
  std::vector<OutgoingPartition> partitions = std::exchange(early_, {});
  for (auto& [ticket, outgoing] : std::exchange(offered_, {})) partitions.push_back(std::move(outgoing));
  for (auto& [key, unanswered] : std::exchange(unanswered_, {}))
    partitions.push_back(std::move(unanswered.outgoing));
  std::ranges::sort(partitions, {}, [](const OutgoingPartition& each) {
    return std::tuple(-int64_t{each.head.priority}, each.head.key, each.head.round);
  });
  early_holds_.clear();  // they are among those below
  std::vector<DataHead> outcomes =
      options_.held != nullptr ? options_.held->at(this) : std::vector<DataHead>();
  if (!outcomes.empty()) events_.on_outcomes_moved(std::move(outcomes));
  if (!partitions.empty()) events_.on_partitions_moved(std::move(partitions));
}

Status Link::complete_answered(const DataHead& head, const Result<protocol::Plan>& outcome) {
  Result<Unanswered*> waiting = find(head);
  if (!waiting) return waiting.status();
  OutgoingPartition outgoing = std::move((*waiting)->outgoing);
  unanswered_.erase(head.key);
  events_.on_completed(std::move(outgoing), outcome);
  return Status::ok();
}

void Link::on_closed(Connection&, const Status& why) {
  port_->close();
  // The connection is the caller of this function, so it is destroyed later.
  connection_->loop().post([doomed = std::move(connection_)] {});
  if (!ended_.is_ok()) return complete_all(ended_);
  lose(why);
}

void Link::lose(const Status& why) {
  lost_ = true;
  events_.on_link_lost(options_.service, why);
}

void Link::peer_left() {
  if (ended_.is_ok()) ended_ = unavailable(options_.service_text + " has left the job");
  if (!connection_) complete_all(ended_);
}

void Link::fail(const Status& why) {
  if (ended_.is_ok()) ended_ = why;
  if (connection_) {
    port_->close();
    connection_->close();
    connection_.reset();
  }
  complete_all(why);
}

void Link::leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done) {
  leave_done_ = std::move(done);
  if (ended_.is_ok()) ended_ = why;
  if (!connection_) return complete_all(why);
  port_->close();
  const DataHead goodbye{.type = DataType::kGoodbye, .epoch = options_.epoch, .rank = options_.rank};
  connection_->send(protocol::encode(goodbye), {}, nullptr);
  connection_->close_when_sent(grace_period);
}

void Link::complete(OutgoingPartition outgoing, const Status& why) {
  if (outgoing.failure.is_ok()) events_.on_completed(std::move(outgoing), why);
}

void Link::complete_all(const Status& why) {
  for (auto& [key, each] : std::exchange(unanswered_, {}))
    events_.on_completed(std::move(each.outgoing), why);
  for (auto& [ticket, outgoing] : std::exchange(offered_, {})) complete(std::move(outgoing), why);
  refuse(std::exchange(early_, {}), why);
  if (leave_done_) std::exchange(leave_done_, nullptr)();
}

}  // namespace byteps::worker
