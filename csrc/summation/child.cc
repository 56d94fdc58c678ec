#include "summation/child.h"

#include <optional>
#include <utility>

namespace byteps::summation {

using protocol::Aggregator;
using protocol::DataHead;
using protocol::DataType;
using transport::Arrival;
using transport::Landing;

Child::Child(Shard& shard, std::unique_ptr<transport::Connection> connection)
    : shard_(shard), connection_(std::move(connection)) {}

void Child::send(const DataHead& head, Bytes payload, transport::Loan loan,
                 std::shared_ptr<const BufferPool::Buffer> keep) {
  const protocol::DataHeadBytes bytes = protocol::encode(head);
  if (loan != transport::kNoLoan) stop_starving();
  if (!connection_->lends()) add(shard_.metrics_.bytes_sent, payload.size());
  connection_->send(bytes, {payload, {}, loan}, [keep = std::move(keep)](const Status&) {});
}

void Child::send_failure(const DataHead& request, const Status& why, transport::Loan loan) {
  DataHead head = request;
  head.type = DataType::kFailed;
  head.code = why.code();
  if (loan != transport::kNoLoan) stop_starving();
  auto text = std::make_unique<std::string>(why.message().substr(0, protocol::kMaxTextBytes));
  const Bytes payload = as_bytes(*text);
  connection_->send(protocol::encode(head), {payload, {}, loan}, [text = std::move(text)](const Status&) {});
}

void Child::give_back(transport::Loan loan) {
  if (loan != transport::kNoLoan) stop_starving();
  connection_->give_back(loan);
}

void Child::say_goodbye() {
  DataHead head;
  head.type = DataType::kGoodbye;
  head.epoch = shard_.epoch_;
  connection_->send(protocol::encode(head), {}, nullptr);
}

Result<Landing> Child::on_head(transport::Connection&, const Arrival& arrival) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (head->type != DataType::kPushPull || rank_ < 0) {
    return data_loss("expected a hello without payload, then push_pulls; got message type " +
                     std::to_string(static_cast<int>(head->type)) + " with " +
                     std::to_string(arrival.payload_bytes) + " bytes of payload");
  }
  const auto verdict = shard_.aggregator_->admit(*head, static_cast<uint32_t>(rank_), arrival.payload_bytes);
  if (!verdict) return verdict.status();
  verdict_ = *verdict;
  if (verdict_ != Aggregator::Verdict::kAccept) return Landing::discard();
  if (!arrival.lent.empty()) return Landing::borrow();
  landing_ = shard_.pool_.acquire(arrival.payload_bytes);
  return Landing::into(landing_.bytes());
}

Status Child::on_frame(transport::Connection&, const Arrival& arrival, Bytes payload) {
  Result<DataHead> head = protocol::decode_data(arrival.head);
  if (!head) return head.status();
  if (!connection_->lends()) add(shard_.metrics_.bytes_received, payload.size());
  switch (head->type) {
    case DataType::kHello: return on_hello(*head);
    case DataType::kPushPull: return on_push_pull(*head, arrival, payload);
    case DataType::kGoodbye:
      left_ = true;
      shard_.on_goodbye(*this);
      return Status::ok();
    default: break;
  }
  return data_loss("a worker does not send message type " + std::to_string(static_cast<int>(head->type)));
}

Status Child::on_hello(const DataHead& head) {
  if (rank_ >= 0) return data_loss("second hello from " + shard_.describe_[static_cast<size_t>(rank_)]);
  if (head.rank >= shard_.describe_.size()) {
    return data_loss("hello: expected a rank below " + std::to_string(shard_.describe_.size()) + ", got " +
                     std::to_string(head.rank));
  }
  // Whoever knows the secret may connect; only who was given the roster of this very job is in it.
  if (head.epoch != shard_.epoch_) return data_loss("hello: another epoch than the roster's");
  if (shard_.has_child(head.rank)) {
    return data_loss("hello: " + shard_.describe_[head.rank] + " is connected already");
  }
  rank_ = static_cast<int>(head.rank);
  return Status::ok();
}

Status Child::on_push_pull(const DataHead& head, const Arrival& arrival, Bytes payload) {
  if (!verdict_) {  // a frame without payload has no on_head
    if (rank_ < 0) return data_loss("a push_pull before the hello");
    const auto verdict = shard_.aggregator_->admit(head, static_cast<uint32_t>(rank_), 0);
    if (!verdict) return verdict.status();
    verdict_ = *verdict;
  }
  BufferPool::Buffer landing = std::move(landing_);
  if (std::exchange(verdict_, std::nullopt) == Aggregator::Verdict::kRepeat) {
    give_back(arrival.loan);
    return Status::ok();
  }
  if (!arrival.reply_space.empty() && arrival.reply_space.size() != head.bytes) {
    return data_loss("push_pull: room for an answer of " + std::to_string(arrival.reply_space.size()) +
                     " bytes, expected " + std::to_string(head.bytes));
  }
  Shard::Contribution contribution{.buffer = std::move(landing),
                                   .data = payload,
                                   .reply_space = arrival.reply_space,
                                   .loan = arrival.loan,
                                   .from = this,
                                   .present = true};
  shard_.contribute(*this, head, std::move(contribution));
  return Status::ok();
}

void Child::on_closed(transport::Connection&, const Status& why) { shard_.on_closed(*this, why); }

void Child::on_starving(transport::Connection&) {
  starving_since_us_ = now_us();
  shard_.schedule_feeding(starving_since_us_);
}

}  // namespace byteps::summation
