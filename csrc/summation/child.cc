#include "summation/child.h"

#include <limits>
#include <utility>

namespace byteps::summation {

using protocol::Aggregator;
using protocol::DataHead;
using protocol::DataType;
using transport::Arrival;
using transport::ReceiveBuffer;

Child::Child(Shard& shard, std::unique_ptr<transport::Connection> connection)
    : shard_(shard),
      port_(shard.outbox_, protocol::Outbox::Kind::kAnswer),
      connection_(std::move(connection)) {}

void Child::start() {
  connection_->limit_silence(shard_.position_.silence_us);
  connection_->start(this);
}

bool Child::is(const DataHead& hello) const {
  return rank_ == static_cast<int>(hello.rank) && level_ == hello.level;
}

void Child::send(const DataHead& head, const transport::Payload& payload,
                 std::shared_ptr<const BufferPool::Buffer> keep) {
  if (!connection_->is_local()) add(shard_.metrics_.bytes_sent, payload.data.size());
  Answer answer{protocol::encode(head), payload};
  answer.payload.keep = std::move(keep);
  enqueue(head, std::move(answer));
  if (is_paced()) shard_.on_answer();
}

void Child::send_mark(uint64_t number) {
  last_mark_ = number;
  send_of_mark(DataType::kMark, number);
}

void Child::send_stable(uint64_t number) {
  if (last_mark_ == number) send_of_mark(DataType::kStable, number);
}

void Child::send_of_mark(DataType type, uint64_t number) {
  const DataHead head{.type = type,
                      .epoch = shard_.position_.epoch,
                      .round = number,
                      .priority = std::numeric_limits<int32_t>::min()};
  enqueue(head, {protocol::encode(head), {}});
}

void Child::send_failure(const DataHead& request, const Status& why, transport::LeaseId lease) {
  DataHead head = request;
  head.type = DataType::kFailed;
  head.code = why.code();
  const auto text = std::make_shared<const std::string>(why.message().substr(0, protocol::kMaxTextBytes));
  enqueue(head, {protocol::encode(head),
                 {.data = as_bytes(*text), .reply_space = {}, .returns_lease = lease, .keep = text}});
}

void Child::enqueue(const DataHead& head, Answer answer) {
  // Local connections use no network card, so they need no credit and no pacing.
  if (connection_->is_local()) return send_now(answer, [keep = answer.payload.keep](const Status&) {});
  const uint64_t bytes = answer.payload.data.size();
  port_.push(head.priority, bytes, [this, bytes, answer = std::move(answer)] {
    const bool rest = !port_.takes_turns() && shard_.outbox_.has_contributed();
    if (const auto rate = pacer_.on_send(bytes, shard_.loop().now_us(), shard_.outbox_.burst(), rest))
      connection_->pace(*rate);
    send_now(answer,
             [this, bytes, keep = answer.payload.keep, alive = std::weak_ptr(alive_)](const Status& status) {
               if (status.is_ok() && !alive.expired()) port_.sent(bytes);
             });
  });
}

void Child::pace(uint64_t bytes_per_s) {
  const auto rate = pacer_.set_limit(bytes_per_s);
  if (rate) connection_->pace(*rate);
}

std::optional<transport::SentTraffic> Child::sent_traffic() {
  return is_paced() ? connection_->sent_traffic() : std::nullopt;
}

void Child::send_now(const Answer& answer, UniqueFunction<void(const Status&)> on_sent) {
  connection_->send(answer.head, answer.payload, std::move(on_sent));
}

void Child::return_lease(transport::LeaseId lease) {
  if (lease != transport::kNoLease) connection_->return_lease(lease);
}

void Child::leave(bool in_order, GracePeriod grace_period) {
  port_.flush();
  const DataHead goodbye{.type = DataType::kGoodbye, .epoch = shard_.position_.epoch};
  if (in_order) connection_->send(protocol::encode(goodbye), {}, nullptr);
  connection_->close_when_sent(grace_period);
}

Result<Aggregator::Verdict> Child::admit(const DataHead& head, size_t payload_bytes) const {
  if (collector_ == nullptr) return data_loss("expected a hello first, got a contribution");
  if (static_cast<int>(head.rank) != rank_) {
    return data_loss("contribution: expected rank " + std::to_string(rank_) + ", got " +
                     std::to_string(head.rank));
  }
  return collector_->admit(head, child_, payload_bytes);
}

Result<ReceiveBuffer> Child::on_head(transport::Connection&, const Arrival& arrival) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (head->type == DataType::kHeld) return place_held(*head, arrival);
  if (head->type == DataType::kHolds) return place_holds(arrival);
  if (!is_contribution(head->type) && head->type != DataType::kFailed) {
    return data_loss("a child does not send message type " + std::to_string(static_cast<int>(head->type)) +
                     " with " + std::to_string(arrival.payload_bytes) + " bytes of payload");
  }
  const auto verdict = admit(*head, arrival.payload_bytes);
  if (!verdict) return verdict.status();
  if (*verdict == Aggregator::Verdict::kRepeat) return ReceiveBuffer::discard();
  if (head->type == DataType::kFailed) return place_text(arrival);
  if (*verdict == Aggregator::Verdict::kRefuse) return ReceiveBuffer::discard();
  if (!arrival.payload.empty()) return ReceiveBuffer::in_place();
  receive_buffer_ = shard_.pool_.acquire(arrival.payload_bytes);
  return ReceiveBuffer::at(receive_buffer_.bytes());
}

Result<ReceiveBuffer> Child::place_text(const Arrival& arrival) {
  if (arrival.payload_bytes > protocol::kMaxTextBytes) return data_loss("a failure's text is too long");
  failure_text_.resize(arrival.payload_bytes);
  return ReceiveBuffer::at(std::as_writable_bytes(std::span(failure_text_)));
}

Status Child::on_frame(transport::Connection&, const Arrival& arrival, Bytes payload) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (!connection_->is_local()) add(shard_.metrics_.bytes_received, payload.size());
  switch (head->type) {
    case DataType::kHello: return on_hello(*head);
    case DataType::kPushPull:
    case DataType::kMoved: return on_push_pull(*head, arrival, payload);
    case DataType::kHolds:
    case DataType::kReleased:
    case DataType::kHeld: return on_outcome(*head, arrival);
    case DataType::kStated:
      if (collector_ == nullptr) return data_loss("expected a hello first, got what it has stated");
      collector_->on_stated(child_, head->round);
      return Status::ok();
    case DataType::kFailed: return on_failed(*head, arrival);
    case DataType::kConfirmed:
      if (!is_paced()) return data_loss("expected no mark of a child that gets none");
      shard_.on_confirmed(*this, head->round);
      return Status::ok();
    case DataType::kGoodbye:
      left_ = true;
      shard_.on_goodbye(*this);
      return Status::ok();
    default: break;
  }
  return data_loss("a child does not send message type " + std::to_string(static_cast<int>(head->type)));
}

Status Child::on_hello(const DataHead& head) {
  if (rank_ >= 0) return data_loss("second hello from rank " + std::to_string(rank_));
  Collector* const collector = shard_.collector(head.level);
  const int32_t child = collector == nullptr ? -1 : collector->child_of_rank(head.rank);
  if (child < 0) return data_loss("hello: rank " + std::to_string(head.rank) + " is not below this service");
  // All processes that know the secret can connect, but only members of this job know its epoch.
  if (head.epoch != shard_.position_.epoch) return data_loss("hello: the epoch is not that of the roster");
  if (shard_.has_child(head)) {
    return data_loss("hello: rank " + std::to_string(head.rank) + " is connected already");
  }
  rank_ = static_cast<int>(head.rank);
  level_ = head.level;
  collector_ = collector;
  if (is_paced()) {
    pacer_ = protocol::Pacer(shard_.position_.bytes_per_s[head.rank]);
    if (shard_.position_.takes_turns[head.rank])
      port_.take_turns({.node = head.rank, .shard = shard_.index_});
  }
  child_ = static_cast<uint32_t>(child);
  return Status::ok();
}

Status Child::on_push_pull(const DataHead& head, const Arrival& arrival, Bytes payload) {
  // Checked again, because another connection may have delivered the same contribution since the
  // head arrived. A contribution that was refused then is still refused.
  const auto verdict = admit(head, arrival.payload_bytes);
  if (!verdict) return verdict.status();
  if (!arrival.reply_space.empty() && arrival.reply_space.size() != head.bytes) {
    return data_loss("contribution: expected room for an answer of " + std::to_string(head.bytes) +
                     " bytes, got " + std::to_string(arrival.reply_space.size()));
  }
  Contribution contribution{.buffer = std::move(receive_buffer_),
                            .data = payload,
                            .reply_space = arrival.reply_space,
                            .lease = arrival.lease,
                            .from = this};
  receive_buffer_ = {};
  if (*verdict == Aggregator::Verdict::kRepeat) {
    return_lease(arrival.lease);
  } else {
    collector_->contribute(child_, head, std::move(contribution));
  }
  return Status::ok();
}

Status Child::on_failed(const DataHead& head, const Arrival& arrival) {
  return_lease(arrival.lease);  // the text has been copied
  std::string text = std::exchange(failure_text_, {});
  const auto verdict = admit(head, arrival.payload_bytes);  // see on_push_pull
  if (!verdict) return verdict.status();
  if (*verdict != Aggregator::Verdict::kRepeat) {
    collector_->contribute_failure(child_, head, Status(head.code, std::move(text)));
  }
  return Status::ok();
}

Result<ReceiveBuffer> Child::place_holds(const Arrival& arrival) {
  const size_t expected = collector_ == nullptr ? 0 : collector_->holds_bytes();
  if (arrival.payload_bytes != expected) {
    return data_loss("a child that holds something: expected " + std::to_string(expected) +
                     " bytes of payload, got " + std::to_string(arrival.payload_bytes));
  }
  receive_buffer_ = shard_.pool_.acquire(arrival.payload_bytes);
  return ReceiveBuffer::at(receive_buffer_.bytes());
}

// The outcome of a round that a lost root has answered. Nobody else may wait for it any more.
Result<ReceiveBuffer> Child::place_held(const DataHead& head, const Arrival& arrival) {
  const bool is_its_own = static_cast<int>(head.rank) == rank_;
  if (collector_ == nullptr || !is_its_own || !collector_->expects_held(head))
    return ReceiveBuffer::discard();
  if (head.code != StatusCode::kOk) return place_text(arrival);
  if (arrival.payload_bytes != head.bytes) {
    return data_loss("held result: expected " + std::to_string(head.bytes) + " bytes, got " +
                     std::to_string(arrival.payload_bytes));
  }
  receive_buffer_ = shard_.pool_.acquire(arrival.payload_bytes);
  return ReceiveBuffer::at(receive_buffer_.bytes());
}

Status Child::on_outcome(const DataHead& head, const Arrival& arrival) {
  return_lease(arrival.lease);
  BufferPool::Buffer values = std::exchange(receive_buffer_, {});
  std::string text = std::exchange(failure_text_, {});
  if (collector_ == nullptr) return data_loss("expected a hello first, got an outcome");
  if (static_cast<int>(head.rank) != rank_ || head.round == 0) {
    return data_loss("outcome: expected one of a round of rank " + std::to_string(rank_) +
                     ", got one of round " + std::to_string(head.round) + " of rank " +
                     std::to_string(head.rank));
  }
  if (head.type == DataType::kHolds) {
    if (arrival.payload_bytes != collector_->holds_bytes()) return data_loss("holds: a payload is missing");
    collector_->on_holds(head, Bytes(values.bytes()).first(arrival.payload_bytes), *this);
  } else if (head.type == DataType::kReleased) {
    collector_->on_released(head, *this);
  } else if (collector_->expects_held(head)) {
    if (head.code != StatusCode::kOk) {
      collector_->on_held(head, Status(head.code, std::move(text)));
    } else if (head.bytes == 0 || !values.empty()) {  // else it was discarded when its head came
      collector_->on_held(head, std::move(values));
    }
  }
  return Status::ok();
}

void Child::on_closed(transport::Connection&, const Status& why) {
  port_.close();
  shard_.on_closed(*this, why);
}

void Child::on_starving(transport::Connection&) {
  if (collector_ != nullptr) collector_->reclaim(*this);
}

}  // namespace byteps::summation
