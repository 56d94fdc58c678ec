#include "summation/shard.h"

#include <algorithm>
#include <utility>

#include "summation/child.h"

namespace byteps::summation {
namespace {

// The root waits longer than the service of a machine, which knows the missing ranks of that
// machine and tells the root.
TimeUs grace_period_of_root(TimeUs limit_us) {
  return limit_us < kNever / 2 ? limit_us + limit_us / 4 : limit_us;
}

}  // namespace

Shard::Shard(uint32_t index, transport::EventLoop& loop, protocol::Outbox& outbox, Metrics& metrics,
             ShardEvents& events)
    : index_(index),
      loop_(loop),
      outbox_(outbox),
      metrics_(metrics),
      events_(events),
      mark_timer_(loop, [this] { return marks_ ? marks_->next_us() : kNever; }, [this] { send_marks(); }) {}

Shard::~Shard() = default;

void Shard::adopt(std::unique_ptr<transport::Connection> connection) {
  if (leaving_ && !leave_done_) return;
  children_.push_back(std::make_unique<Child>(*this, std::move(connection)));
  if (cluster_) children_.back()->start();
  if (leaving_) children_.back()->leave(!failed_, *grace_period_);
}

void Shard::start(const Position& position) {
  position_ = position;
  position_.bytes_per_s.resize(position.num_workers);
  position_.takes_turns.resize(position.num_workers);
  const Collector::Environment environment{
      loop_, metrics_, pool_, events_, position.epoch, position.num_workers, position.may_be_lost};
  protocol::WaitLimits limits = position.limits;
  store_ = std::make_unique<ParameterStore>(environment, protocol::each_rank(position.describe_rank), limits);
  if (!position.ranks.describe.empty()) {
    machine_ = std::make_unique<ReductionLevel>(environment, position.ranks, limits, position.parent_link,
                                                position.num_final_roots);
  }
  if (position.machines.describe.size() < position.num_workers) {
    limits = {grace_period_of_root(limits.stall_warning_us), grace_period_of_root(limits.op_timeout_us)};
  }
  cluster_ = std::make_unique<ReductionLevel>(environment, position.machines, limits, nullptr, 0);
  position_.machines = position_.ranks = {};
  if (position.may_be_lost) marks_.emplace(position.mark_us);
  for (const auto& child : children_) child->start();
}

void Shard::pace(const std::vector<uint64_t>& bytes_per_s) {
  position_.bytes_per_s = bytes_per_s;
  for (const auto& child : children_) {
    if (child->is_paced()) child->pace(bytes_per_s[static_cast<size_t>(child->rank())]);
  }
}

void Shard::add_sent_traffic(std::vector<protocol::Flow>& flows) {
  for (const auto& child : children_) {
    const auto sent = child->sent_traffic();
    if (sent)
      flows.push_back(
          {static_cast<uint32_t>(child->rank()), true, sent->bytes, static_cast<uint64_t>(sent->busy_us)});
  }
}

template <typename F>
void Shard::for_each_collector(F&& f) {
  for (const protocol::Level level :
       {protocol::Level::kMachine, protocol::Level::kCluster, protocol::Level::kRanks}) {
    if (Collector* of_level = collector(level)) f(*of_level);
  }
}

Collector* Shard::collector(protocol::Level level) {
  switch (level) {
    case protocol::Level::kMachine: return machine_.get();
    case protocol::Level::kCluster: return cluster_.get();
    case protocol::Level::kRanks: return store_.get();
  }
  return nullptr;
}

bool Shard::has_child(const protocol::DataHead& hello) const {
  return std::ranges::any_of(children_, [&hello](const auto& child) { return child->is(hello); });
}

void Shard::on_answer() {
  if (!marks_) return;
  marks_->on_answer(loop_.now_us());
  mark_timer_.update();
}

void Shard::send_marks() {
  std::set<uint32_t> ranks;
  for (const auto& child : children_) {
    if (child->is_paced() && !child->has_left()) ranks.insert(static_cast<uint32_t>(child->rank()));
  }
  const uint64_t mark = marks_->begin(ranks, loop_.now_us());
  for (const auto& child : children_) {
    if (child->is_paced() && !child->has_left()) child->send_mark(mark);
  }
}

void Shard::on_confirmed(Child& child, uint64_t mark) {
  if (marks_ && marks_->on_confirmed(static_cast<uint32_t>(child.rank()), mark)) send_stable();
}

void Shard::send_stable() {
  for (const auto& child : children_) {
    if (!child->has_left()) child->send_stable(marks_->last());
  }
  mark_timer_.update();
}

void Shard::on_goodbye(Child& child) {
  if (child.rank() < 0) return;
  const bool is_marked = marks_ && child.is_paced();
  if (is_marked && marks_->on_left(static_cast<uint32_t>(child.rank()))) send_stable();
  forget(child);
  rank_left(static_cast<uint32_t>(child.rank()), false);
}

// The child's leases end; its contributions still count in rounds that the others complete.
void Shard::forget(const Child& child) {
  if (Collector* const collector = child.collector()) collector->forget(child);
}

void Shard::rank_left(uint32_t rank, bool lingers) {
  const Status why = unavailable(position_.describe_rank[rank] + " has left the job");
  for_each_collector([&](Collector& collector) {
    const int32_t number = collector.child_of_rank(rank);
    if (number < 0) return;
    const auto child = static_cast<uint32_t>(number);
    lingers ? collector.child_lingers(child, why) : collector.child_gone(child, why);
  });
}

void Shard::restart_waits() {
  for_each_collector([](Collector& collector) { collector.restart_waits(); });
}

void Shard::fail_tensor(uint64_t number, uint64_t last_round, const Status& why) {
  for_each_collector(
      [number, last_round, &why](Collector& collector) { collector.fail_tensor(number, last_round, why); });
}

void Shard::forget(const std::vector<protocol::ForgottenKeys>& keys) {
  for_each_collector([&keys](Collector& collector) {
    for (const protocol::ForgottenKeys& each : keys) collector.forget(each);
  });
}

void Shard::add_summed_tensors(std::set<uint64_t>& numbers) const {
  for (const ReductionLevel* const level : {machine_.get(), cluster_.get()}) {
    if (level != nullptr) level->add_tensors(numbers);
  }
}

void Shard::fail(const Status& why) {
  failed_ = true;
  for_each_collector([&why](Collector& collector) { collector.fail(why); });
  if (!leave_done_) return;
  drop_children();  // do not wait for the lost child
  finish_leaving_if_empty();
}

void Shard::abandon(const Status& why) {
  drop_children();
  leaving_ = true;  // accepts no more
  fail(why);
}

void Shard::drop_children() {
  for (const auto& child : children_) forget(*child);
  children_.clear();
}

void Shard::on_closed(Child& child, const Status& why) {
  const int rank = child.rank();
  const bool left = child.has_left();
  if (marks_ && child.is_paced() && !left) marks_->on_lost();
  mark_timer_.update();
  forget(child);
  remove(child);
  if (rank >= 0 && !left && !leave_done_) events_.on_child_lost(static_cast<uint32_t>(rank), why);
  finish_leaving_if_empty();
}

void Shard::remove(Child& child) {
  const auto found = std::ranges::find(children_, &child, [](const auto& each) { return each.get(); });
  // The child's connection is the caller of this function, so it is destroyed later.
  loop_.post([doomed = std::move(*found)] {});
  children_.erase(found);
}

void Shard::leave(GracePeriod grace_period, UniqueFunction<void()> done) {
  for_each_collector([](Collector& collector) { collector.stop_timers(); });
  marks_.reset();
  mark_timer_.stop();
  leaving_ = true;
  grace_period_ = grace_period;
  leave_done_ = std::move(done);
  if (!cluster_) children_.clear();  // not started, so nothing would report their end
  for (const auto& child : children_) {
    // No goodbye if the job has failed: children would believe that this node has left in order
    // and caused the failure.
    child->leave(!failed_, grace_period);
  }
  finish_leaving_if_empty();
}

void Shard::finish_leaving_if_empty() {
  if (leave_done_ && children_.empty()) std::exchange(leave_done_, nullptr)();
}

}  // namespace byteps::summation
