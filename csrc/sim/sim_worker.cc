#include "sim/sim_worker.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {

using protocol::ChangePlan;
using protocol::FinishHandle;
using protocol::Handle;
using protocol::SendDeclare;
using protocol::StartPartition;

SimWorker::SimWorker(World& world, VirtualProcess& process, uint32_t rank, protocol::Tree tree,
                     const protocol::PartitionRule& rule, WorkerEvents& events)
    : world_(world), process_(process), rank_(rank), events_(events), table_(rank, std::move(tree), rule) {}

Status SimWorker::declare(const std::string& name, DType dtype, uint64_t bytes) {
  const Status status = table_.declare(name, dtype, bytes, actions_);
  apply();
  return status;
}

Status SimWorker::push_pull(Handle handle, const protocol::PushPull& request, const View& input,
                            const View& output) {
  buffers_[handle] = {input, output};
  if (rank_ == 0 && world_.random.chance(world_.scenario.plan_change_chance)) ask_for_another_plan();
  const Status status = table_.start(handle, request, actions_);
  if (!status.is_ok()) buffers_.erase(handle);
  apply();
  return status;
}

Status SimWorker::on_placed(const protocol::Placed& placed) {
  const Status status = table_.on_placed(placed, actions_);
  apply();
  return status;
}

void SimWorker::on_refused(const protocol::Refused& refused) {
  table_.on_refused(refused, actions_);
  apply();
}

// In place of a tuner: nobody knows better what might go wrong.
void SimWorker::ask_for_another_plan() {
  const auto cut = static_cast<uint8_t>(world_.random.below(protocol::kMaxPartitionScale + 1));
  const auto credit = static_cast<uint8_t>(world_.random.below(4));
  table_.ask_for({.partition_scale = cut, .credit = credit});
}

void SimWorker::on_completed(Handle handle, const Result<protocol::Plan>& outcome) {
  const auto found = buffers_.find(handle);
  if (found == buffers_.end() || found->second.unsettled == 0) {
    return world_.report(process_, "a partition of handle " + std::to_string(handle) + " is settled twice");
  }
  --found->second.unsettled;
  const bool is_deaf = world_.sabotage == Sabotage::kKeepsPlans && rank_ == 1;
  table_.complete(handle, outcome && is_deaf ? protocol::Plan{} : outcome, actions_);
  apply();
}

void SimWorker::apply() {
  // Links may settle at once and come back here; all partitions of a handle are counted before the first of them.
  const auto actions = std::exchange(actions_, {});
  for (const protocol::TableAction& action : actions) {
    if (const auto* partition = std::get_if<StartPartition>(&action))
      ++buffers_.at(partition->handle).unsettled;
  }
  Batches batches;
  for (const protocol::TableAction& action : actions) {
    if (const auto* declare = std::get_if<SendDeclare>(&action)) events_.send_to_scheduler(declare->declare);
    const auto* told = std::get_if<protocol::SendRoundFailed>(&action);
    if (told != nullptr && world_.sabotage != Sabotage::kKeepsFailures) {
      events_.send_to_scheduler(told->failed);
    }
    if (const auto* change = std::get_if<ChangePlan>(&action)) change_plan(change->plan);
    if (const auto* partition = std::get_if<StartPartition>(&action)) start(*partition, batches);
    if (const auto* failed = std::get_if<protocol::FailPartition>(&action)) fail(*failed, batches);
    if (const auto* finish = std::get_if<FinishHandle>(&action)) {
      buffers_.erase(finish->handle);
      events_.on_handle_done(finish->handle, finish->status);
    }
  }
  for (auto& [link, partitions] : batches) {
    process_.soon([link = link, partitions = std::move(partitions)]() mutable {
      link->enqueue(std::move(partitions));
    });
  }
}

void SimWorker::change_plan(const protocol::Plan& plan) {
  world_.note(process_, encode(plan), [&] {
    return "follows partition scale " + std::to_string(plan.partition_scale) + ", credit " +
           std::to_string(plan.credit);
  });
  const uint64_t credit_bytes = protocol::credit_bytes(plan.credit, world_.scenario.credit_bytes);
  events_.on_credit(credit_bytes);
}

void SimWorker::start(const StartPartition& partition, Batches& batches) {
  const Buffers& buffers = buffers_.at(partition.handle);
  const protocol::DataHead& head = partition.head;
  const auto part = [&](const View& whole) { return View{whole.memory, partition.offset, head.bytes}; };
  const bool contributes = protocol::has_values(head);
  const bool is_stored = partition.parent.level == protocol::Level::kRanks;
  SimLink& link = (is_stored ? parameter_store_links_ : links_).at(partition.parent.node, head.shard_index);
  batch_of(link, batches)
      .push_back({partition.handle, head, contributes ? part(buffers.input) : View{}, part(buffers.output)});
}

void SimWorker::fail(const protocol::FailPartition& failed, Batches& batches) {
  if (world_.sabotage == Sabotage::kKeepsFailures) return;
  SimLink& link = links_.at(failed.parent.node, failed.head.shard_index);
  batch_of(link, batches)
      .push_back({.handle = 0, .head = failed.head, .input = {}, .output = {}, .failure = failed.why});
}

std::vector<OutgoingPartition>& SimWorker::batch_of(SimLink& link, Batches& batches) {
  const auto batch = std::ranges::find(batches, &link, &Batch::first);
  if (batch != batches.end()) return batch->second;
  return batches.emplace_back(&link, std::vector<OutgoingPartition>{}).second;
}

void SimWorker::fail(const Status& why) {
  table_.fail(why, actions_);
  apply();
  links_.fail(why);
  parameter_store_links_.fail(why);
}

void SimWorker::peer_left(uint32_t service) {
  links_.peer_left(service);
  parameter_store_links_.peer_left(service);
}

void SimWorker::leave(GracePeriod grace_period, UniqueFunction<void()> done) {
  const Status why = failed_precondition("byteps was shut down");
  table_.fail(why, actions_);
  apply();
  const auto waiting_for = std::make_shared<size_t>(2);
  const auto all_done = std::make_shared<UniqueFunction<void()>>(std::move(done));
  for (SimLanes* const links : {&links_, &parameter_store_links_}) {
    links->leave(why, grace_period, [waiting_for, all_done] {
      if (--*waiting_for == 0) (*all_done)();
    });
  }
}

}  // namespace byteps::sim
