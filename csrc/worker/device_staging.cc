#include "worker/device_staging.h"

#include <sys/prctl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace byteps::worker {

using device::Copier;
using device::CudaDevice;
using protocol::StartPartition;

namespace {

// Copies are asked after this part of the time since the last one was done, so that their end is
// noticed late by this part at most.
constexpr TimeUs kPartOfWait = 16;
constexpr TimeUs kLeastPollUs = 20;
constexpr TimeUs kMostPollUs = 10'000;
// Of a tensor, while copies of others are in flight. To wake the loop would take the caller longer
// than all else.
constexpr TimeUs kLateUs = 1'000;
// The kernel may delay a timer by 50 us otherwise.
constexpr unsigned long kTimerSlackNs = 1'000;
constexpr uint64_t kFirstChunkBytes = 512 << 10;
constexpr uint64_t kLargestChunkBytes = 4 << 20;
// Of one tensor, in host memory. The bus carries this much while a partition makes its way.
constexpr uint64_t kMostStagedBytes = 32 << 20;

// The partitions of one call of stage() that are not in host memory yet.
struct Tensor {
  DeviceTensor memory;
  std::deque<StartPartition> waiting;
  uint64_t chunk_bytes = kFirstChunkBytes;  // of the next chunk
  uint64_t staged_bytes = 0;                // of chunks that exist
};

// Host memory for partitions that are side by side in the tensor. Destroyed on the device loop, or
// when that has ended.
struct Chunk {
  std::shared_ptr<Tensor> tensor;
  std::vector<StartPartition> starts;  // emptied when they are sent or have failed
  uint64_t offset = 0;                 // of the first one, in the tensor
  uint64_t bytes = 0;
  device::StagingMemory::Buffer buffer;
};

}  // namespace

struct StagedPartition {
  std::shared_ptr<Chunk> chunk;
  protocol::Handle handle;
  uint64_t offset;  // in the tensor
  uint64_t bytes;
};

class DeviceStaging::OnLoop final : public transport::TurnHandler {
 public:
  OnLoop(const device::CudaDriver& driver, DeviceStaging& owner, Loop loop)
      : memory_(driver, owner.max_pinned_bytes_, owner.shared_), owner_(owner), loop_(std::move(loop)) {}

  void stage(DevicePartitions partitions);
  void copy_back(std::shared_ptr<StagedPartition> staged, const Result<protocol::Plan>& outcome);
  void fail(const Status& why);
  void drain() { copiers_.clear(); }
  void on_turn() override {
    has_turn_ = false;
    send_back();
  }

 private:
  struct Returned {
    std::shared_ptr<StagedPartition> staged;
    protocol::Plan plan;
  };

  DeviceStagingEvents& events() { return *owner_.events_; }
  Result<Copier*> copier_of(CudaDevice& device);
  void proceed(const std::shared_ptr<Tensor>& tensor);
  std::shared_ptr<Chunk> next_chunk(const std::shared_ptr<Tensor>& tensor);
  void begin(const std::shared_ptr<Chunk>& chunk);
  void on_copied(const std::shared_ptr<Chunk>& chunk, const Status& status);
  void fail_chunk(Chunk& chunk, const Status& why);
  void send(const std::shared_ptr<Chunk>& chunk);
  void send_back();
  void send_back(std::vector<Returned>::iterator begin, std::vector<Returned>::iterator end);
  void poll();
  void poll_later();

  device::StagingMemory memory_;
  DeviceStaging& owner_;
  const Loop loop_;
  std::set<std::shared_ptr<Tensor>> tensors_;  // with partitions that wait
  std::set<std::shared_ptr<Chunk>> pending_;   // on their way to host memory
  std::vector<Returned> returned_;             // to be copied to the device
  std::map<const CudaDevice*, std::unique_ptr<Copier>> copiers_;
  Status failed_;
  std::optional<TimeUs> waits_since_us_;  // of copies in flight: since the last one was done
  bool polls_ = false;                    // a timer runs
  bool has_turn_ = false;                 // on_turn() follows
};

DeviceStaging::DeviceStaging(LoopMaker make_loop, uint64_t max_pinned_bytes, MutableBytes shared,
                             Metrics& metrics)
    : make_loop_(std::move(make_loop)),
      max_pinned_bytes_(max_pinned_bytes),
      shared_(shared),
      metrics_(metrics) {}

DeviceStaging::~DeviceStaging() { stop(); }

Status DeviceStaging::start(const device::CudaDriver& driver) {
  MutexLock lock(mutex_);
  if (loop_) return Status::ok();
  auto loop = make_loop_();
  if (!loop) return loop.status();
  loop_ = std::move(*loop);
  on_loop_ = std::make_unique<OnLoop>(driver, *this, loop_);
  loop_->post([] { prctl(PR_SET_TIMERSLACK, kTimerSlackNs); });
  return Status::ok();
}

DeviceStaging::Loop DeviceStaging::loop() {
  MutexLock lock(mutex_);
  return loop_;
}

void DeviceStaging::stage(DevicePartitions partitions) {
  loop()->post_within(kLateUs, [this, partitions = std::move(partitions)]() mutable {
    on_loop_->stage(std::move(partitions));
  });
}

void DeviceStaging::copy_back(std::shared_ptr<StagedPartition> staged,
                              const Result<protocol::Plan>& outcome) {
  loop()->post([this, staged = std::move(staged), outcome]() mutable {
    on_loop_->copy_back(std::move(staged), outcome);
  });
}

void DeviceStaging::fail(const Status& why, UniqueFunction<void()> done) {
  const Loop on = loop();
  if (!on) return done();
  on->post([this, why, done = std::move(done)]() mutable {
    on_loop_->fail(why);
    done();
  });
}

void DeviceStaging::stop() {
  const Loop on = loop();
  if (!on) return;
  on->stop();
  on_loop_->drain();
}

Result<Copier*> DeviceStaging::OnLoop::copier_of(CudaDevice& device) {
  if (const auto found = copiers_.find(&device); found != copiers_.end()) return found->second.get();
  auto created = Copier::create(device);
  if (!created) return created.status();
  return (copiers_[&device] = std::move(*created)).get();
}

void DeviceStaging::OnLoop::stage(DevicePartitions partitions) {
  if (!failed_.is_ok()) return events().on_staging_failed(partitions.starts, failed_);
  auto tensor = std::make_shared<Tensor>();
  tensor->memory = std::move(partitions.tensor);
  tensor->waiting.assign(std::move_iterator(partitions.starts.begin()),
                         std::move_iterator(partitions.starts.end()));
  tensors_.insert(tensor);
  proceed(tensor);
}

void DeviceStaging::OnLoop::proceed(const std::shared_ptr<Tensor>& tensor) {
  while (!tensor->waiting.empty() && tensor->staged_bytes < kMostStagedBytes) begin(next_chunk(tensor));
  if (tensor->waiting.empty()) tensors_.erase(tensor);
}

std::shared_ptr<Chunk> DeviceStaging::OnLoop::next_chunk(const std::shared_ptr<Tensor>& tensor) {
  auto chunk = std::make_shared<Chunk>();
  chunk->tensor = tensor;
  chunk->offset = tensor->waiting.front().offset;
  do {
    chunk->bytes += tensor->waiting.front().head.bytes;
    chunk->starts.push_back(std::move(tensor->waiting.front()));
    tensor->waiting.pop_front();
  } while (!tensor->waiting.empty() && tensor->waiting.front().offset == chunk->offset + chunk->bytes &&
           chunk->bytes + tensor->waiting.front().head.bytes <= tensor->chunk_bytes);
  tensor->chunk_bytes = std::min(2 * tensor->chunk_bytes, kLargestChunkBytes);
  tensor->staged_bytes += chunk->bytes;
  return chunk;
}

void DeviceStaging::OnLoop::begin(const std::shared_ptr<Chunk>& chunk) {
  const DeviceTensor& tensor = chunk->tensor->memory;
  CudaDevice& device = tensor.transfer->device();
  const Result<Copier*> copier = copier_of(device);
  if (!copier) return fail_chunk(*chunk, copier.status());
  try {
    chunk->buffer = memory_.acquire(device, chunk->bytes);
  } catch (const OutOfMemory& error) {
    return fail_chunk(*chunk, device_lost("copies from " + device.text() + ": " + error.what()));
  }
  if (!chunk->buffer.is_pinned) add(owner_.metrics_.unpinned_bytes, chunk->bytes);
  if (!protocol::has_values(chunk->starts.front().head)) return send(chunk);
  add(owner_.metrics_.staged_bytes, chunk->bytes);
  pending_.insert(chunk);
  (*copier)->copy_to_host({.transfer = tensor.transfer,
                           .from = tensor.input + chunk->offset,
                           .to = chunk->buffer.memory.bytes(),
                           .is_pinned = chunk->buffer.is_pinned,
                           .priority = chunk->starts.front().head.priority,
                           .done = [this, chunk](const Status& status) { on_copied(chunk, status); }});
  poll_later();
}

void DeviceStaging::OnLoop::on_copied(const std::shared_ptr<Chunk>& chunk, const Status& status) {
  if (pending_.erase(chunk) == 0) return;  // the job has failed meanwhile
  status.is_ok() ? send(chunk) : fail_chunk(*chunk, status);
}

void DeviceStaging::OnLoop::fail_chunk(Chunk& chunk, const Status& why) {
  chunk.tensor->staged_bytes -= chunk.bytes;
  events().on_staging_failed(std::exchange(chunk.starts, {}), why);
}

void DeviceStaging::OnLoop::send(const std::shared_ptr<Chunk>& chunk) {
  DeviceStagingEvents::ToSend partitions;
  const MutableBytes memory = chunk->buffer.memory.bytes();
  for (const StartPartition& start : std::exchange(chunk->starts, {})) {
    const MutableBytes part = memory.subspan(start.offset - chunk->offset, start.head.bytes);
    partitions.emplace_back(
        start.parent, OutgoingPartition{.handle = start.handle,
                                        .head = start.head,
                                        .input = protocol::has_values(start.head) ? Bytes(part) : Bytes(),
                                        .output = part,
                                        .failure = {},
                                        .staged = std::make_shared<StagedPartition>(StagedPartition{
                                            chunk, start.handle, start.offset, start.head.bytes})});
  }
  events().on_staged(std::move(partitions));
}

void DeviceStaging::OnLoop::copy_back(std::shared_ptr<StagedPartition> staged,
                                      const Result<protocol::Plan>& outcome) {
  const std::shared_ptr<Tensor> tensor = staged->chunk->tensor;
  if (!outcome) {
    const protocol::Handle handle = staged->handle;
    tensor->staged_bytes -= staged->bytes;
    staged.reset();
    events().on_copied_back(handle, outcome);
    return proceed(tensor);
  }
  if (!std::exchange(has_turn_, true)) loop_->request_turn(this);
  returned_.push_back({std::move(staged), *outcome});
}

// Copies what has come back, as much as possible at once.
void DeviceStaging::OnLoop::send_back() {
  std::ranges::sort(returned_, {}, [](const Returned& each) {
    return std::pair(each.staged->chunk.get(), each.staged->offset);
  });
  std::vector<Returned> all = std::exchange(returned_, {});
  for (auto begin = all.begin(); begin != all.end();) {
    auto end = begin + 1;
    while (end != all.end() && end->staged->chunk == begin->staged->chunk &&
           end->staged->offset == (end - 1)->staged->offset + (end - 1)->staged->bytes)
      ++end;
    const Result<Copier*> copier = copier_of(begin->staged->chunk->tensor->memory.transfer->device());
    if (copier && (*copier)->is_device_busy()) {
      returned_.insert(returned_.end(), std::move_iterator(begin), std::move_iterator(end));
    } else {
      send_back(begin, end);
    }
    begin = end;
  }
}

void DeviceStaging::OnLoop::send_back(std::vector<Returned>::iterator begin,
                                      std::vector<Returned>::iterator end) {
  const std::shared_ptr<Chunk> chunk = begin->staged->chunk;
  const std::shared_ptr<Tensor> tensor = chunk->tensor;
  const StagedPartition &first = *begin->staged, &last = *(end - 1)->staged;
  const uint64_t bytes = last.offset + last.bytes - first.offset;
  const Bytes memory = chunk->buffer.memory.bytes().subspan(first.offset - chunk->offset, bytes);
  const Result<Copier*> copier = copier_of(tensor->memory.transfer->device());
  const Status status = copier ? (*copier)->copy_to_device(*tensor->memory.transfer, memory,
                                                           tensor->memory.output + first.offset,
                                                           [this, chunk, bytes](const Status&) {
                                                             chunk->tensor->staged_bytes -= bytes;
                                                             proceed(chunk->tensor);
                                                           })
                               : copier.status();
  poll_later();
  for (auto each = begin; each != end; ++each) {
    const protocol::Handle handle = each->staged->handle;
    each->staged.reset();
    events().on_copied_back(handle, status.is_ok() ? Result<protocol::Plan>(each->plan) : status);
  }
  if (status.is_ok()) return;
  tensor->staged_bytes -= bytes;
  proceed(tensor);
}

void DeviceStaging::OnLoop::fail(const Status& why) {
  failed_ = why;
  for (const auto& [device, copier] : copiers_) copier->drop_waiting(why);
  for (const auto& chunk : std::exchange(pending_, {})) fail_chunk(*chunk, why);
  for (const auto& tensor : std::exchange(tensors_, {})) {
    const std::vector<StartPartition> starts(tensor->waiting.begin(), tensor->waiting.end());
    tensor->waiting.clear();
    events().on_staging_failed(starts, why);
  }
}

void DeviceStaging::OnLoop::poll() {
  bool has_progressed = false;
  for (const auto& [device, copier] : copiers_) has_progressed |= copier->poll();
  if (has_progressed) waits_since_us_.reset();
  if (!returned_.empty()) send_back();
  poll_later();
}

void DeviceStaging::OnLoop::poll_later() {
  const bool is_idle = std::ranges::all_of(copiers_, [](const auto& each) { return each.second->is_idle(); });
  if (polls_ || is_idle) return;
  polls_ = true;
  const TimeUs now = loop_->now_us();
  if (!waits_since_us_) waits_since_us_ = now;
  const TimeUs waited_us = now - *waits_since_us_;
  loop_->run_at(now + std::clamp(waited_us / kPartOfWait, kLeastPollUs, kMostPollUs), [this] {
    polls_ = false;
    poll();
  });
}

}  // namespace byteps::worker
