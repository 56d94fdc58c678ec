#include "sim/sim_child.h"

#include <string>
#include <utility>

#include "sim/sim_link.h"
#include "sim/sim_shard.h"

namespace byteps::sim {

using protocol::Aggregator;
using protocol::DataHead;
using protocol::DataType;

bool SimChild::is(const DataHead& hello) const {
  return rank_ == static_cast<int>(hello.rank) && level_ == hello.level && lane_ == hello.shard_index;
}

void SimChild::send(const DataHead& head, const View& payload, LeaseId lease) {
  Frame frame = make_frame(head, payload);
  frame.returns_lease = lease;
  if (head.type == DataType::kResult) frame.digest = digest_of(payload);
  if (endpoint_.lends()) return endpoint_.send(std::move(frame), nullptr);
  const uint64_t bytes = payload.size;
  const uint64_t ticket = watch_.offered(head.priority, bytes);
  port_.push(head.priority, protocol::Outbox::Kind::kAnswer, bytes,
             [this, bytes, ticket, frame = std::move(frame)]() mutable {
               endpoint_.send(std::move(frame), [this, bytes, ticket](const Status& status) {
                 if (!status.is_ok()) return;
                 watch_.left(ticket);
                 port_.sent(bytes);
               });
             });
}

void SimChild::send_failure(const DataHead& request, const Status& why, LeaseId lease) {
  DataHead head = request;
  head.type = DataType::kFailed;
  head.code = why.code();
  send(head, make_view(world_, process_, as_bytes(why.message())), lease);
}

void SimChild::leave(std::optional<uint32_t> epoch, GracePeriod grace_period) {
  port_.flush();
  if (epoch) {
    DataHead goodbye;
    goodbye.type = DataType::kGoodbye;
    goodbye.epoch = *epoch;
    endpoint_.send(make_frame(goodbye), nullptr);
  }
  endpoint_.close_when_sent(grace_period);
}

void SimChild::drop() {
  port_.close();
  watch_.close();
  endpoint_.close();
  closed_ = true;
}

void SimChild::on_head(Endpoint&, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  const bool is_contribution = head && (head->type == DataType::kPushPull || head->type == DataType::kFailed);
  if (is_contribution && frame.payload.size > 0) verdict_ = admit(*head, frame.payload.size);
}

Aggregator::Verdict SimChild::admit(const DataHead& head, size_t payload_bytes) {
  if (collector_ == nullptr) {
    world_.report(process_, "a contribution came before a hello");
    return Aggregator::Verdict::kRepeat;
  }
  const auto verdict = collector_->admit(head, child_, payload_bytes);
  if (verdict) return *verdict;
  world_.report(process_, "a correct contribution was not admitted: " + verdict.status().to_string());
  return Aggregator::Verdict::kRepeat;
}

Aggregator::Verdict SimChild::take_verdict(const DataHead& head) {
  if (!verdict_) verdict_ = admit(head, 0);
  return *std::exchange(verdict_, std::nullopt);
}

void SimChild::on_frame(Endpoint&, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (!head) return world_.report(process_, head.status().to_string());
  switch (head->type) {
    case DataType::kHello: return on_hello(*head);
    case DataType::kPushPull: return on_push_pull(*head, frame);
    case DataType::kFailed: return on_failed(*head, frame);
    case DataType::kGoodbye: left_ = true; return shard_.on_goodbye(*this);
    default:
      world_.report(process_, "a child sent message type " + std::to_string(static_cast<int>(head->type)));
  }
}

void SimChild::on_hello(const DataHead& head) {
  SimCollector* const collector = shard_.collector(head.level);
  const int32_t child = collector == nullptr ? -1 : collector->child_of_rank(head.rank);
  if (child < 0 || shard_.has_child(head)) return world_.report(process_, "a correct hello was not admitted");
  rank_ = static_cast<int>(head.rank);
  level_ = head.level;
  lane_ = head.shard_index;
  collector_ = collector;
  child_ = static_cast<uint32_t>(child);
}

void SimChild::on_push_pull(const DataHead& head, const Frame& frame) {
  const Aggregator::Verdict verdict = take_verdict(head);
  if (verdict == Aggregator::Verdict::kRepeat) {
    if (world_.sabotage == Sabotage::kSumsRepeats) collector_->add_repeat(child_, head, frame.payload);
    return endpoint_.return_lease(frame.lease);
  }
  Contribution contribution{.data = frame.payload,
                            .reply_space = frame.reply_space,
                            .lease = frame.lease,
                            .from = this,
                            .lent = endpoint_.carriage() == Carriage::kLocal || frame.by_reference,
                            .present = true};
  if (verdict == Aggregator::Verdict::kRefuse) contribution.data = {};
  collector_->contribute(child_, head, std::move(contribution));
}

void SimChild::on_failed(const DataHead& head, const Frame& frame) {
  const Aggregator::Verdict verdict = take_verdict(head);
  const Status why(head.code, std::string(as_text(frame.payload.read())));
  endpoint_.return_lease(frame.lease);
  if (verdict != Aggregator::Verdict::kRepeat) collector_->contribute_failure(child_, head, why);
}

void SimChild::on_closed(Endpoint&, const Status& why) {
  port_.close();
  watch_.close();
  closed_ = true;
  shard_.on_closed(*this, why);
}

void SimChild::on_starving(Endpoint&) {
  if (collector_ != nullptr) collector_->reclaim(*this);
}

}  // namespace byteps::sim
