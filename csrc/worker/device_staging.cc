#include "worker/device_staging.h"

#include <map>
#include <set>
#include <utility>

namespace byteps::worker {

using device::Copier;
using device::CudaDevice;

namespace {

// How often the copies in flight are asked, in case CUDA does not call back.
constexpr TimeUs kPollUs = 100'000;

}  // namespace

struct DeviceStaging::OnLoop {
  OnLoop(const device::CudaDriver& driver, uint64_t max_pinned_bytes, DeviceStaging& owner, Loop of)
      : memory(driver, max_pinned_bytes), staging(owner), loop(std::move(of)) {}

  Result<Copier*> copier_of(CudaDevice& device);
  void stage(const DeviceTensor& tensor, const protocol::StartPartition& start);
  void on_copied(const std::shared_ptr<StagedPartition>& staged, const Status& status);
  void send(std::shared_ptr<StagedPartition> staged);
  void copy_back(std::shared_ptr<StagedPartition> staged, Result<protocol::Plan> outcome);
  void poll();
  void poll_later();

  device::StagingMemory memory;
  DeviceStaging& staging;
  const Loop loop;
  std::map<const CudaDevice*, std::unique_ptr<Copier>> copiers;
  std::set<std::shared_ptr<StagedPartition>> pending;  // not in host memory yet
  Status failed;
  bool polls = false;  // a timer runs
};

DeviceStaging::DeviceStaging(LoopMaker make_loop, uint64_t max_pinned_bytes, Metrics& metrics)
    : make_loop_(std::move(make_loop)), max_pinned_bytes_(max_pinned_bytes), metrics_(metrics) {}

DeviceStaging::~DeviceStaging() { stop(); }

Status DeviceStaging::start(const device::CudaDriver& driver) {
  MutexLock lock(mutex_);
  if (loop_) return Status::ok();
  auto loop = make_loop_();
  if (!loop) return loop.status();
  loop_ = std::move(*loop);
  on_loop_ = std::make_unique<OnLoop>(driver, max_pinned_bytes_, *this, loop_);
  // Otherwise some calls of this thread would fail while another one captures a CUDA graph.
  loop_->post([&driver] {
    int mode = device::cuda::kCaptureRelaxed;
    driver.functions().thread_exchange_capture_mode(&mode);
  });
  return Status::ok();
}

DeviceStaging::Loop DeviceStaging::loop() {
  MutexLock lock(mutex_);
  return loop_;
}

void DeviceStaging::stage(const DeviceTensor& tensor, const protocol::StartPartition& start) {
  loop()->post([this, tensor, start] { on_loop_->stage(tensor, start); });
}

void DeviceStaging::copy_back(std::shared_ptr<StagedPartition> staged, const Result<protocol::Plan>& outcome) {
  loop()->post([this, staged = std::move(staged), outcome]() mutable {
    on_loop_->copy_back(std::move(staged), std::move(outcome));
  });
}

void DeviceStaging::fail(const Status& why, UniqueFunction<void()> done) {
  const Loop on = loop();
  if (!on) return done();
  on->post([this, why, done = std::move(done)]() mutable {
    on_loop_->failed = why;
    for (const auto& staged : std::exchange(on_loop_->pending, {}))
      events_->on_staging_failed(staged->start, why);
    done();
  });
}

void DeviceStaging::stop() {
  const Loop on = loop();
  if (!on) return;
  on->stop();
  on_loop_->copiers.clear();
}

Result<Copier*> DeviceStaging::OnLoop::copier_of(CudaDevice& device) {
  std::unique_ptr<Copier>& copier = copiers[&device];
  if (!copier) {
    // CUDA may call later than this object exists, so the loop is shared; what is posted to it when
    // it has stopped does not run.
    auto created = Copier::create(device, [this, on = loop] { on->post([this] { poll(); }); });
    if (!created) return created.status();
    copier = std::move(*created);
  }
  return copier.get();
}

void DeviceStaging::OnLoop::stage(const DeviceTensor& tensor, const protocol::StartPartition& start) {
  if (!failed.is_ok()) return staging.events_->on_staging_failed(start, failed);
  CudaDevice& device = tensor.transfer->device();
  const Result<Copier*> copier = copier_of(device);
  if (!copier) return staging.events_->on_staging_failed(start, copier.status());
  auto staged = std::make_shared<StagedPartition>(tensor, start, device::StagingMemory::Buffer());
  try {
    staged->buffer = memory.acquire(device, start.head.bytes);
  } catch (const OutOfMemory& error) {
    return staging.events_->on_staging_failed(
        start, unavailable(std::string("memory for copies from ") + device.text() + ": " + error.what()));
  }
  if (!staged->buffer.is_pinned) add(staging.metrics_.unpinned_bytes, start.head.bytes);
  if (!protocol::has_values(start.head)) return send(std::move(staged));
  pending.insert(staged);
  (*copier)->copy_to_host({.transfer = tensor.transfer,
                           .from = tensor.input + start.offset,
                           .to = staged->buffer.memory.bytes(),
                           .is_pinned = staged->buffer.is_pinned,
                           .priority = start.head.priority,
                           .done = [this, staged](const Status& status) { on_copied(staged, status); }});
  poll_later();
}

void DeviceStaging::OnLoop::on_copied(const std::shared_ptr<StagedPartition>& staged, const Status& status) {
  if (pending.erase(staged) == 0) return;  // the job has failed meanwhile
  if (!status.is_ok()) return staging.events_->on_staging_failed(staged->start, status);
  add(staging.metrics_.staged_bytes, staged->start.head.bytes);
  send(staged);
}

void DeviceStaging::OnLoop::send(std::shared_ptr<StagedPartition> staged) {
  const protocol::StartPartition& start = staged->start;
  const MutableBytes memory = staged->buffer.memory.bytes();
  const protocol::Parent parent = start.parent;
  OutgoingPartition outgoing{.handle = start.handle,
                             .head = start.head,
                             .input = protocol::has_values(start.head) ? Bytes(memory) : Bytes(),
                             .output = memory,
                             .failure = {},
                             .staged = std::move(staged)};
  staging.events_->on_staged(parent, std::move(outgoing));
}

void DeviceStaging::OnLoop::copy_back(std::shared_ptr<StagedPartition> staged, Result<protocol::Plan> outcome) {
  const protocol::StartPartition& start = staged->start;
  const protocol::Handle handle = start.handle;
  if (outcome) {
    const Result<Copier*> copier = copier_of(staged->tensor.transfer->device());
    const Status status =
        copier ? (*copier)->copy_to_device(*staged->tensor.transfer, staged->buffer.memory.bytes(),
                                           staged->tensor.output + start.offset, [staged](const Status&) {})
               : copier.status();
    if (!status.is_ok()) outcome = status;
    poll_later();
  }
  staged.reset();
  staging.events_->on_copied_back(handle, outcome);
}

void DeviceStaging::OnLoop::poll() {
  for (const auto& [device, copier] : copiers) copier->poll();
}

void DeviceStaging::OnLoop::poll_later() {
  if (polls) return;
  polls = true;
  loop->run_at(loop->now_us() + kPollUs, [this] {
    polls = false;
    poll();
    for (const auto& [device, copier] : copiers) {
      if (!copier->is_idle()) return poll_later();
    }
  });
}

}  // namespace byteps::worker
