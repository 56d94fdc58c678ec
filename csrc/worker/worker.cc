#include "worker/worker.h"

#include <utility>

#include "base/log.h"

namespace byteps::worker {

using protocol::ChangePlan;
using protocol::FinishHandle;
using protocol::Handle;
using protocol::SendDeclare;
using protocol::StartPartition;

namespace {

// Copying or summing so few bytes takes less time than waking a thread that does it.
constexpr uint64_t kQuickBytes = 64 << 10;
// Of a larger tensor, little would be left in a core's cache when the last partition is done.
constexpr uint64_t kColdBytes = 4 << 20;

}  // namespace

Worker::Worker(const WorkerOptions& options, protocol::Tree tree, const protocol::PartitionRule& rule,
               Metrics& metrics, const Clock& clock, std::unique_ptr<Completions> completions,
               DeviceStaging& staging, WorkerEvents& events)
    : options_(options),
      metrics_(metrics),
      clock_(clock),
      staging_(staging),
      events_(events),
      handles_(metrics, clock, std::move(completions)),
      links_(tree.num_rank_indices()),
      parameter_store_links_(tree.num_rank_indices()),
      num_final_roots_(tree.num_final_roots()),
      table_(options.rank, std::move(tree), rule, options.names) {
  staging_.set_events(*this);
  if (options.autotune && options.rank == 0) tuner_.emplace(options.credit_bytes);
  metrics_.partition_factor = 1;
  metrics_.credit_bytes = options.credit_bytes;
}

template <typename F>
void Worker::change(F&& f) {
  Work work;
  {
    MutexLock lock(mutex_);
    f(table_, actions_);
    work = take_work();
  }
  do_work(std::move(work));
}

Status Worker::declare(const std::string& name, DType dtype, uint64_t bytes) {
  Status status;
  change([&](auto& table, auto& actions) { status = table.declare(name, dtype, bytes, actions); });
  return status;
}

Result<Handle> Worker::push_pull(const protocol::PushPull& request, const TensorMemory& memory) {
  const Handle handle = handles_.open(request.bytes);
  const Status status = start(handle, request, memory);
  if (status.is_ok()) return handle;
  handles_.cancel(handle);
  return status;
}

void Worker::push_pull(const protocol::PushPull& request, const TensorMemory& memory, OnDone on_done) {
  const Handle handle = handles_.open(request.bytes, std::move(on_done));
  const Status status = start(handle, request, memory);
  if (!status.is_ok()) handles_.cancel(handle)(status);
}

Status Worker::start(Handle handle, const protocol::PushPull& request, const TensorMemory& memory) {
  Status status;
  if (memory.transfer) status = staging_.start(memory.transfer->device().driver());
  Work work;
  {
    MutexLock lock(mutex_);
    if (status.is_ok()) {
      memory_[handle] = {memory, request.bytes >= kColdBytes};
      if (tuner_) tune(request);
      status = table_.start(handle, request, actions_);
    } else {
      table_.refuse(request.name, request.step, status, actions_);
    }
    if (!status.is_ok()) memory_.erase(handle);
    work = take_work();
  }
  do_work(std::move(work), request.bytes <= kQuickBytes);
  return status;
}

void Worker::refuse(const std::string& name, uint64_t step, const Status& why) {
  change([&](auto& table, auto& actions) { table.refuse(name, step, why, actions); });
}

void Worker::request_plan(const protocol::Plan& plan) {
  MutexLock lock(mutex_);
  table_.ask_for(plan);
}

void Worker::request_placement(uint8_t placement) {
  MutexLock lock(mutex_);
  table_.ask_for_placement(placement);
}

Status Worker::on_placed(const protocol::Placed& placed) {
  Status status;
  change([&](auto& table, auto& actions) { status = table.on_placed(placed, actions); });
  return status;
}

void Worker::on_refused(const protocol::Refused& refused) {
  change([&](auto& table, auto& actions) { table.on_refused(refused, actions); });
}

// Repeated broadcasts do not mark steps, and stored tensors do not follow plans.
void Worker::tune(const protocol::PushPull& request) {
  if (request.op == ReduceOp::kBroadcast || is_stored(request.op)) return;
  const std::optional<TimeUs> step_us = steps_.on_start(request.name, clock_.now_us());
  if (!step_us) return;
  const std::string decision = tuner_->on_step(*step_us);
  if (!decision.empty()) BPS_LOG(kInfo) << "autotune " << decision;
  table_.ask_for(tuner_->desired_plan());
}

void Worker::on_completed(OutgoingPartition partition, const Result<protocol::Plan>& outcome) {
  if (partition.staged) return staging_.copy_back(std::move(partition.staged), outcome);
  if (partition.on_part != nullptr && outcome.is_ok()) (*partition.on_part)(partition.output);
  complete(partition.handle, outcome);
}

void Worker::on_staged(ToSend partitions) {
  Work work;
  for (auto& [parent, partition] : partitions) {
    partition.is_answered_soon = partition.head.root_node < num_final_roots_;
    add_partition(work, parent, std::move(partition));
  }
  do_work(std::move(work));
}

// The other ranks must not wait for the contributions.
void Worker::on_staging_failed(const std::vector<StartPartition>& starts, const Status& why) {
  Work work;
  for (const StartPartition& start : starts) {
    add_partition(work, start.parent,
                  {.handle = 0, .head = start.head, .input = {}, .output = {}, .failure = why});
  }
  do_work(std::move(work));
  change([&](auto& table, auto& actions) {
    for (const StartPartition& start : starts) table.complete(start.handle, why, actions);
  });
}

void Worker::on_copied_back(Handle handle, const Result<protocol::Plan>& outcome) {
  complete(handle, outcome);
}

void Worker::complete(Handle handle, const Result<protocol::Plan>& outcome) {
  change([&](auto& table, auto& actions) { table.complete(handle, outcome, actions); });
}

void Worker::add_partition(Work& work, const protocol::Parent& parent, OutgoingPartition partition) {
  ShardLink& link = links_for(partition.head).at(parent.node, partition.head.serving_index);
  const auto [found, is_new] = work.indices.try_emplace(&link, work.partitions.size());
  if (is_new) work.partitions.emplace_back(&link, std::vector<OutgoingPartition>());
  work.partitions[found->second].second.push_back(std::move(partition));
}

Worker::Work Worker::take_work() {
  Work work;
  for (protocol::TableAction& action : actions_) {
    if (auto* declare = std::get_if<SendDeclare>(&action)) {
      events_.send_to_scheduler(std::move(declare->declare));
    } else if (auto* told = std::get_if<protocol::SendRoundFailed>(&action)) {
      events_.send_to_scheduler(std::move(told->failed));
    } else if (auto* forget = std::get_if<protocol::SendForget>(&action)) {
      events_.send_to_scheduler(std::move(forget->forget));
    } else if (const auto* change = std::get_if<ChangePlan>(&action)) {
      work.plan = change->plan;
      count_move(change->plan.placement);
    } else if (auto* start = std::get_if<StartPartition>(&action)) {
      start_partition(work, *start);
    } else if (auto* fail = std::get_if<protocol::FailPartition>(&action)) {
      add_partition(
          work, fail->parent,
          {.handle = 0, .head = fail->head, .input = {}, .output = {}, .failure = std::move(fail->why)});
    } else if (auto* finish = std::get_if<FinishHandle>(&action)) {
      memory_.erase(finish->handle);
      work.finished.emplace_back(finish->handle, std::move(finish->status));
    }
  }
  actions_.clear();
  return work;
}

void Worker::start_partition(Work& work, StartPartition& start) {
  const TensorMemory& tensor = memory_.at(start.handle).tensor;
  if (!tensor.transfer) return add_partition(work, start.parent, make_outgoing(start));
  if (work.to_stage.empty() || work.to_stage.back().starts.front().handle != start.handle) {
    const DeviceTensor on_device{tensor.transfer, reinterpret_cast<uintptr_t>(tensor.input),
                                 reinterpret_cast<uintptr_t>(tensor.output)};
    work.to_stage.push_back({on_device, {}});
  }
  work.to_stage.back().starts.push_back(std::move(start));
}

void Worker::do_work(Work work, bool quickly) {
  if (work.plan) change_plan(*work.plan);
  for (DevicePartitions& partitions : work.to_stage) staging_.stage(std::move(partitions));
  for (auto& [link, partitions] : work.partitions) {
    auto enqueue = [link = link->link.get(), partitions = std::move(partitions)]() mutable {
      link->enqueue(std::move(partitions));
    };
    quickly ? link->loop->run_soon(std::move(enqueue)) : link->loop->post(std::move(enqueue));
  }
  for (auto& [handle, status] : work.finished) {
    handles_.finish(handle, status.is_ok() ? Status::ok() : events_.explain(status));
  }
}

void Worker::change_plan(const protocol::Plan& plan) {
  const uint64_t credit_bytes = protocol::credit_bytes(plan.credit, options_.credit_bytes);
  const double factor = protocol::scale_factor(plan.partition_scale);
  const bool is_resized = metrics_.partition_factor.exchange(factor) != factor;
  const bool is_credited = metrics_.credit_bytes.exchange(credit_bytes) != credit_bytes;
  if (is_resized || is_credited) add(metrics_.plan_changes, 1);
  if (is_credited) events_.on_credit(credit_bytes);
}

// Tensors that have not been used since keep an earlier placement, so it may change back and forth.
void Worker::count_move(uint8_t placement) {
  if (static_cast<int8_t>(placement - placement_) <= 0) return;
  placement_ = placement;
  add(metrics_.placement_moves, 1);
}

OutgoingPartition Worker::make_outgoing(const StartPartition& start) {
  const Memory& memory = memory_.at(start.handle);
  const bool contributes = protocol::has_values(start.head);
  return {.handle = start.handle,
          .head = start.head,
          .input = contributes ? Bytes(memory.tensor.input + start.offset, start.head.bytes) : Bytes{},
          .output = MutableBytes(memory.tensor.output + start.offset, start.head.bytes),
          .is_cold = memory.is_cold,
          .is_answered_soon = start.head.root_node < num_final_roots_,
          .failure = {},
          .on_part = memory.tensor.on_part.get()};
}

void Worker::peer_left(uint32_t service) {
  links_.peer_left(service);
  parameter_store_links_.peer_left(service);
}

void Worker::lose_server(const protocol::Removed& removed) {
  links_.lose(removed);
  parameter_store_links_.lose(removed);
}

void Worker::add_server(const protocol::NodeInfo& server) {
  links_.add_successor(server);
  parameter_store_links_.add_successor(server);
  MutexLock lock(mutex_);
  table_.add_server(server);
}

bool Worker::is_busy() {
  MutexLock lock(mutex_);
  return table_.in_flight() > 0;
}

std::string Worker::name_wait(Handle handle) {
  MutexLock lock(mutex_);
  return table_.name_wait(handle);
}

void Worker::fail(const Status& why) {
  change([&](auto& table, auto& actions) { table.fail(why, actions); });
  staging_.fail(why, [] {});
  links_.fail(why);
  parameter_store_links_.fail(why);
}

void Worker::leave(GracePeriod grace_period, UniqueFunction<void()> done) {
  const Status why = failed_precondition("byteps was shut down");
  change([&](auto& table, auto& actions) { table.fail(why, actions); });
  // First no more partitions may come to the links.
  staging_.fail(why, [this, why, grace_period, done = std::move(done)]() mutable {
    ShardLinks::leave({&links_, &parameter_store_links_}, why, grace_period, std::move(done));
  });
}

}  // namespace byteps::worker
