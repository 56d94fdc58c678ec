#include "sim/sim_link.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace byteps::sim {

using protocol::DataHead;
using protocol::DataType;

View make_view(World& world, const VirtualProcess& process, Bytes bytes) {
  if (bytes.empty()) return {};
  auto memory = std::make_shared<Memory>(world.findings, process.name() + ", copy", bytes.size());
  std::ranges::copy(bytes, memory->use(0, bytes.size(), "written").begin());
  return {std::move(memory), 0, bytes.size()};
}

uint64_t digest_of(const View& view) {
  uint64_t digest = 0;
  for (const std::byte byte : view.read()) digest = (digest ^ static_cast<uint64_t>(byte)) * 0x100000001B3ull;
  return digest;
}

Frame make_frame(const DataHead& head, View payload, View reply_space) {
  const protocol::DataHeadBytes bytes = protocol::encode(head);
  return {.head = {bytes.begin(), bytes.end()},
          .payload = std::move(payload),
          .reply_space = std::move(reply_space)};
}

SimLink::SimLink(World& world, VirtualProcess& process, LinkOptions options, Connector connector,
                 protocol::Outbox& outbox, LinkEvents& events)
    : world_(world),
      process_(process),
      options_(std::move(options)),
      connector_(std::move(connector)),
      events_(events),
      outbox_(outbox) {}

void SimLink::enqueue(std::vector<OutgoingPartition> partitions) {
  if (!ended_.is_ok()) {
    for (const OutgoingPartition& partition : partitions) {
      if (partition.failure.is_ok()) events_.on_completed(partition.handle, ended_);
    }
  } else if (endpoint_ != nullptr) {
    offer(std::move(partitions));
  } else {
    std::ranges::move(partitions, std::back_inserter(early_));
    connect();
  }
}

void SimLink::offer(std::vector<OutgoingPartition> partitions) {
  const protocol::Outbox::Port::Batch batch(*port_);
  for (OutgoingPartition& partition : partitions) {
    const bool is_failure = !partition.failure.is_ok();
    const int32_t priority = is_failure ? std::numeric_limits<int32_t>::max() : partition.head.priority;
    const uint64_t bytes = partition.input.size;
    const uint64_t ticket = watch_->offered(priority, bytes);
    offered_.emplace(ticket, std::move(partition));
    const bool orders = world_.sabotage != Sabotage::kIgnoresPriority;
    port_->push(orders ? priority : 0, protocol::Outbox::Kind::kContribution, bytes,
                [this, ticket] { hand_over(ticket); });
  }
}

void SimLink::hand_over(uint64_t ticket) {
  const OutgoingPartition partition = std::move(offered_.extract(ticket).mapped());
  partition.failure.is_ok() ? send(partition, ticket) : send_failure(partition, ticket);
}

void SimLink::connect() {
  if (connecting_ || lost_ || !ended_.is_ok()) return;
  connecting_ = true;
  connector_([this](Result<Endpoint*> endpoint) { on_connected(std::move(endpoint)); });
}

void SimLink::on_connected(Result<Endpoint*> endpoint) {
  connecting_ = false;
  if (!ended_.is_ok()) {
    if (endpoint) (*endpoint)->close();
    return;
  }
  if (!endpoint) {
    lost_ = true;
    return events_.on_link_lost(options_.service, endpoint.status());
  }
  endpoint_ = *endpoint;
  endpoint_->limit_silence(options_.silence_us);
  endpoint_->start(this);
  endpoint_->send(make_frame(head_of_type(DataType::kHello)), nullptr);
  port_.emplace(outbox_);
  watch_.emplace(world_, process_, options_.service_text, outbox_);
  offer(std::exchange(early_, {}));
}

DataHead SimLink::head_of_type(DataType type) const {
  DataHead head;
  head.type = type;
  head.epoch = options_.epoch;
  head.level = options_.level;
  head.rank = options_.rank;
  return head;
}

void SimLink::send(const OutgoingPartition& partition, uint64_t ticket) {
  DataHead head = partition.head;
  head.epoch = options_.epoch;
  const uint64_t bytes = partition.input.size;
  unanswered_[head.key] = {partition.handle, head.round, partition.output, bytes};
  world_.note(process_, head.key.tensor * 1000 + head.round, [&] {
    return "contributes tensor " + std::to_string(head.key.tensor) + "." +
           std::to_string(head.key.partition) + " round " + std::to_string(head.round) + " to " +
           options_.service_text;
  });
  const View reply_space = endpoint_->lends() ? partition.output : View{};
  endpoint_->send(make_frame(head, partition.input, reply_space),
                  [this, bytes, ticket](const Status& status) {
                    if (status.is_ok()) watch_->left(ticket);
                    if (status.is_ok() && world_.sabotage != Sabotage::kCreditUntilAnswer) port_->sent(bytes);
                  });
  if (world_.scenario.fault.kind == FaultKind::kRepeats) send_again_later(head, partition.input);
}

void SimLink::send_failure(const OutgoingPartition& partition, uint64_t ticket) {
  DataHead head = partition.head;
  head.type = DataType::kFailed;
  head.epoch = options_.epoch;
  head.code = partition.failure.code();
  endpoint_->send(make_frame(head, make_view(world_, process_, as_bytes(partition.failure.message()))),
                  [this, ticket](const Status& status) {
                    if (status.is_ok()) watch_->left(ticket);
                  });
}

void SimLink::send_again_later(const DataHead& head, const View& input) {
  if (endpoint_->carriage() == Carriage::kLocal || !world_.random.chance(0.3)) return;
  const TimeUs when = world_.clock.now() + world_.random.between(0, 3000);
  process_.at(when, [this, head, copy = make_view(world_, process_, input.read())] {
    if (endpoint_ != nullptr) endpoint_->send(make_frame(head, copy), nullptr);
  });
}

SimLink::Unanswered* SimLink::find(const DataHead& head) {
  const auto found = unanswered_.find(head.key);
  if (found != unanswered_.end() && found->second.round == head.round) return &found->second;
  world_.report(process_, options_.service_text + " answered tensor " + std::to_string(head.key.tensor) +
                              "." + std::to_string(head.key.partition) + " round " +
                              std::to_string(head.round) + ", which waits for no answer");
  return nullptr;
}

void SimLink::on_head(Endpoint&, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (!head || head->type != DataType::kResult || frame.payload.size == 0) return;
  // The first bytes of a result may be written long before its last ones.
  if (Unanswered* waiting = find(*head)) waiting->output.write();
}

void SimLink::on_frame(Endpoint&, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (!head) return world_.report(process_, head.status().to_string());
  switch (head->type) {
    case DataType::kResult:
      if (Unanswered* waiting = find(*head)) deliver_lent(frame, waiting->output);
      return complete_answered(*head, head->plan);
    case DataType::kFailed:
      return complete_answered(*head, Status(head->code, std::string(as_text(frame.payload.read()))));
    case DataType::kGoodbye: ended_ = unavailable(options_.service_text + " has left the job"); return;
    default:
      world_.report(process_, "a service sent message type " + std::to_string(static_cast<int>(head->type)));
  }
}

void SimLink::deliver_lent(const Frame& frame, const View& output) {
  const View& payload = frame.payload;
  if (payload.size != output.size) return world_.report(process_, "a result of another size");
  // An answer in the memory that was lent for it is in its place.
  if (digest_of(payload) != frame.digest) world_.report(process_, "an answer has changed on its way");
  if (payload.memory != output.memory) std::ranges::copy(payload.read(), output.write().begin());
}

void SimLink::complete_answered(const DataHead& head, const Result<protocol::Plan>& outcome) {
  const Unanswered* waiting = find(head);
  if (waiting == nullptr) return;
  const Unanswered answered = *waiting;
  unanswered_.erase(head.key);
  if (world_.sabotage == Sabotage::kCreditUntilAnswer) port_->sent(answered.credit_bytes);
  events_.on_completed(answered.handle, outcome);
}

void SimLink::on_closed(Endpoint&, const Status& why) {
  close_port();
  endpoint_ = nullptr;
  world_.note(process_, 9, [&] {
    return "has no connection to " + options_.service_text + " any more: " + why.message();
  });
  if (!ended_.is_ok()) return complete_all(ended_);  // after a goodbye, of either side
  lost_ = true;
  if (world_.sabotage == Sabotage::kSettlesTwice) {
    for (const auto& [key, partition] : std::map(unanswered_)) events_.on_completed(partition.handle, why);
  }
  events_.on_link_lost(options_.service, why);
}

void SimLink::close_port() {
  port_->close();
  watch_->close();
}

void SimLink::peer_left() {
  if (ended_.is_ok()) ended_ = unavailable(options_.service_text + " has left the job");
  if (endpoint_ == nullptr) complete_all(ended_);
}

void SimLink::fail(const Status& why) {
  if (ended_.is_ok()) ended_ = why;
  if (endpoint_ != nullptr) {
    close_port();
    std::exchange(endpoint_, nullptr)->close();
  }
  complete_all(why);
}

void SimLink::leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done) {
  leave_done_ = std::move(done);
  if (ended_.is_ok()) ended_ = why;
  if (endpoint_ == nullptr) return complete_all(why);
  close_port();  // what has not been sent is not sent any more
  endpoint_->send(make_frame(head_of_type(DataType::kGoodbye)), nullptr);
  endpoint_->close_when_sent(grace_period);
}

void SimLink::complete_all(const Status& why) {
  const auto unanswered = std::exchange(unanswered_, {});
  for (const auto& [key, partition] : unanswered) events_.on_completed(partition.handle, why);
  for (const auto& [ticket, partition] : std::exchange(offered_, {})) {
    if (partition.failure.is_ok()) events_.on_completed(partition.handle, why);
  }
  for (const OutgoingPartition& partition : std::exchange(early_, {})) {
    if (partition.failure.is_ok()) events_.on_completed(partition.handle, why);
  }
  if (leave_done_) std::exchange(leave_done_, nullptr)();
}

}  // namespace byteps::sim
