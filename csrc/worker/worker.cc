#include "worker/worker.h"

#include <atomic>
#include <utility>

#include "base/event_flag.h"

namespace byteps::worker {

using protocol::FinishHandle;
using protocol::Handle;
using protocol::SendDeclare;
using protocol::StartPartition;

Worker::Worker(uint32_t rank, uint32_t size, uint32_t num_services, Metrics& metrics, WorkerEvents& events)
    : rank_(rank), events_(events), handles_(metrics), table_(rank, size, num_services) {}

void Worker::add_service(std::vector<Lane> lanes) { services_.push_back(std::move(lanes)); }

Status Worker::declare(const std::string& name, DType dtype, uint64_t bytes) {
  Work work;
  {
    MutexLock lock(mutex_);
    BPS_RETURN_IF_ERROR(table_.declare(name, dtype, bytes, actions_));
    work = take_work();
  }
  do_work(std::move(work));
  return Status::ok();
}

Result<Handle> Worker::push_pull(const protocol::PushPull& request, const std::byte* input,
                                 std::byte* output) {
  const Handle handle = handles_.open(request.bytes);
  Status status;
  Work work;
  {
    MutexLock lock(mutex_);
    memory_[handle] = {input, output};
    status = table_.start(handle, request, actions_);
    if (!status) memory_.erase(handle);
    work = take_work();
  }
  do_work(std::move(work));
  if (status) return handle;
  handles_.cancel(handle);
  return status;
}

Status Worker::on_placed(const protocol::Placed& placed) {
  Work work;
  {
    MutexLock lock(mutex_);
    for (const uint16_t service : placed.services) {
      if (service < services_.size() && services_[service].empty()) {
        return data_loss("placement of '" + placed.name + "': node " + std::to_string(service) +
                         " has no service");
      }
    }
    BPS_RETURN_IF_ERROR(table_.on_placed(placed, actions_));
    work = take_work();
  }
  do_work(std::move(work));
  return Status::ok();
}

void Worker::on_refused(const protocol::Refused& refused) {
  Work work;
  {
    MutexLock lock(mutex_);
    table_.on_refused(refused, actions_);
    work = take_work();
  }
  do_work(std::move(work));
}

void Worker::on_settled(Handle handle, const Status& status) {
  Work work;
  {
    MutexLock lock(mutex_);
    table_.settle(handle, status, actions_);
    work = take_work();
  }
  do_work(std::move(work));
}

Worker::Work Worker::take_work() {
  Work work;
  for (protocol::TableAction& action : actions_) {
    if (auto* declare = std::get_if<SendDeclare>(&action)) {
      work.declares.push_back(std::move(declare->declare));
    } else if (auto* start = std::get_if<StartPartition>(&action)) {
      work.partitions[&lane_of(*start)].push_back(make_outgoing(*start));
    } else if (auto* finish = std::get_if<FinishHandle>(&action)) {
      memory_.erase(finish->handle);
      work.finished.emplace_back(finish->handle, std::move(finish->status));
    }
  }
  actions_.clear();
  return work;
}

void Worker::do_work(Work work) {
  for (protocol::Declare& declare : work.declares) events_.send_declare(std::move(declare));
  for (auto& [lane, partitions] : work.partitions) {
    lane->loop->post([link = lane->link.get(), partitions = std::move(partitions)]() mutable {
      link->enqueue(std::move(partitions));
    });
  }
  for (auto& [handle, status] : work.finished) handles_.finish(handle, std::move(status));
}

Outgoing Worker::make_outgoing(const StartPartition& start) {
  const Memory& memory = memory_.at(start.handle);
  const bool contributes = start.head.op != ReduceOp::kBroadcast || start.head.root == rank_;
  return {.handle = start.handle,
          .head = start.head,
          .input = contributes ? Bytes(memory.input + start.offset, start.head.bytes) : Bytes{},
          .output = MutableBytes(memory.output + start.offset, start.head.bytes)};
}

Worker::Lane& Worker::lane_of(const StartPartition& start) {
  std::vector<Lane>& lanes = services_[start.service];
  // Every worker must choose alike: the shard sums what reaches it.
  return lanes[(start.head.key.tensor + start.head.key.partition) % lanes.size()];
}

template <typename F>
void Worker::for_each_lane(F&& f) {
  for (size_t service = 0; service < services_.size(); ++service) {
    for (Lane& lane : services_[service]) f(service, lane);
  }
}

void Worker::peer_left(uint32_t service) {
  for (Lane& lane : services_[service]) {
    lane.loop->post([link = lane.link.get()] { link->peer_left(); });
  }
}

void Worker::fail(const Status& why) {
  Work work;
  {
    MutexLock lock(mutex_);
    table_.fail(why, actions_);
    work = take_work();
  }
  do_work(std::move(work));
  for_each_lane(
      [&why](size_t, Lane& lane) { lane.loop->post([link = lane.link.get(), why] { link->fail(why); }); });
}

void Worker::leave(TimeUs deadline_us) {
  const Status why = failed_precondition("byteps was shut down");
  Work work;
  {
    MutexLock lock(mutex_);
    table_.fail(why, actions_);
    work = take_work();
  }
  do_work(std::move(work));
  struct Pending {
    std::atomic<size_t> lanes{1};
    EventFlag none_left;
  };
  // Shared: a lane may report after the deadline.
  const auto pending = std::make_shared<Pending>();
  const auto done = [pending] {
    if (pending->lanes.fetch_sub(1) == 1) pending->none_left.set();
  };
  for_each_lane([&](size_t, Lane& lane) {
    pending->lanes.fetch_add(1);
    lane.loop->post(
        [link = lane.link.get(), why, deadline_us, done] { link->leave(why, deadline_us, done); });
  });
  done();
  while (pending->none_left.wait(deadline_us) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace byteps::worker
