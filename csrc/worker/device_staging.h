// Push_pulls of device memory: partitions are copied to host memory as soon as the tensor is made,
// each is sent when its copy is done, and copied back when its result has arrived.
//
// Thread-safe. A loop of its own ("bps-device"), which starts with the first such push_pull, makes
// the calls of CUDA: some of them wait for others in the process, which data loops must not.
#pragma once

#include <memory>

#include "base/annotations.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "device/copier.h"
#include "device/staging_memory.h"
#include "device/transfer.h"
#include "protocol/push_pull_table.h"
#include "transport/event_loop.h"
#include "worker/link.h"

namespace byteps::worker {

// A tensor in the memory of a device. The addresses are the device's.
struct DeviceTensor {
  std::shared_ptr<device::Transfer> transfer;
  device::cuda::Address input;
  device::cuda::Address output;
};

// A partition in host memory, or on its way there. Destroyed on the device loop, or when that has
// ended.
struct StagedPartition {
  DeviceTensor tensor;
  protocol::StartPartition start;
  device::StagingMemory::Buffer buffer;
};

// Callbacks, on the device loop.
class DeviceStagingEvents {
 public:
  virtual ~DeviceStagingEvents() = default;
  // The partition is in host memory, to be sent.
  virtual void on_staged(const protocol::Parent& parent, OutgoingPartition partition) = 0;
  // It cannot be copied, so it is not sent.
  virtual void on_staging_failed(const protocol::StartPartition& start, const Status& why) = 0;
  // The copy of its result to the device is enqueued, or it has failed.
  virtual void on_copied_back(protocol::Handle handle, const Result<protocol::Plan>& outcome) = 0;
};

class DeviceStaging {
 public:
  using LoopMaker = UniqueFunction<Result<std::unique_ptr<transport::EventLoop>>()>;
  DeviceStaging(LoopMaker make_loop, uint64_t max_pinned_bytes, Metrics& metrics);
  ~DeviceStaging();

  // Call before the first push_pull.
  void set_events(DeviceStagingEvents& events) { events_ = &events; }
  // Starts the loop, unless it runs. Call before each stage().
  Status start(const device::CudaDriver& driver);
  // Copies a partition to the host. on_staged() or on_staging_failed() follows.
  void stage(const DeviceTensor& tensor, const protocol::StartPartition& start);
  // What on_staged() has passed on is answered, or has failed. on_copied_back() follows.
  void copy_back(std::shared_ptr<StagedPartition> staged, const Result<protocol::Plan>& outcome);
  // The job has failed, or this worker leaves: what is not staged yet fails, without waiting for the
  // device. Then calls `done`, on the device loop or within this call.
  void fail(const Status& why, UniqueFunction<void()> done);
  // Waits for copies on the device, and ends the loop. Call it when the data loops have stopped.
  // Idempotent.
  void stop();

 private:
  struct OnLoop;
  using Loop = std::shared_ptr<transport::EventLoop>;

  Loop loop();

  LoopMaker make_loop_;
  const uint64_t max_pinned_bytes_;
  Metrics& metrics_;
  DeviceStagingEvents* events_ = nullptr;
  Mutex mutex_;
  Loop loop_ BPS_GUARDED_BY(mutex_);  // null: no push_pull of device memory yet
  std::unique_ptr<OnLoop> on_loop_;   // constant once loop_ is set; used on the loop
};

}  // namespace byteps::worker
