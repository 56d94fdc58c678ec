// Push_pulls of device memory: partitions are copied to host memory as soon as the tensor is made,
// each is sent when its copy is done, and copied back when its result has arrived.
//
// A copy costs about as much time of this thread as 256 KiB take on the bus, which is the size of
// many partitions. So partitions side by side are copied together: to the host in chunks that grow,
// so that the first one is sent early; to the device as many as have arrived while others are being
// copied. Only a part of a tensor is in host memory at the same time, so that it stays in the
// cache; ranks copy the partitions of a tensor in the same order, so they never wait for each
// other's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

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

// Partitions of a tensor, in the order of their offsets.
struct DevicePartitions {
  DeviceTensor tensor;
  std::vector<protocol::StartPartition> starts;
};

// Callbacks, on the device loop.
class DeviceStagingEvents {
 public:
  virtual ~DeviceStagingEvents() = default;
  // These partitions are in host memory, to be sent to these parents.
  using ToSend = std::vector<std::pair<protocol::Parent, OutgoingPartition>>;
  virtual void on_staged(ToSend partitions) = 0;
  // These cannot be copied, so they are not sent.
  virtual void on_staging_failed(const std::vector<protocol::StartPartition>& starts, const Status& why) = 0;
  // The copy of its result to the device is enqueued, or it has failed.
  virtual void on_copied_back(protocol::Handle handle, const Result<protocol::Plan>& outcome) = 0;
};

// Thread-safe. A loop of its own ("bps-device"), which starts with the first such push_pull, makes
// the calls of CUDA: some of them wait for others in the process, which data loops must not.
class DeviceStaging {
 public:
  using LoopMaker = UniqueFunction<Result<std::unique_ptr<transport::EventLoop>>()>;
  // `shared`: as for device::StagingMemory; must exist as long as this object.
  DeviceStaging(LoopMaker make_loop, uint64_t max_pinned_bytes, MutableBytes shared, Metrics& metrics);
  ~DeviceStaging();

  // Call before the first push_pull.
  void set_events(DeviceStagingEvents& events) { events_ = &events; }
  // Starts the loop, unless it runs. Call before each stage().
  Status start(const device::CudaDriver& driver);
  // Copies partitions to the host. on_staged() or on_staging_failed() follows for each.
  void stage(DevicePartitions partitions);
  // What on_staged() has passed on is answered, or has failed. on_copied_back() follows.
  void copy_back(std::shared_ptr<StagedPartition> staged, const Result<protocol::Plan>& outcome);
  // The job has failed, or this worker leaves: what is not staged yet fails, without waiting for the
  // device. Then calls `done`, on the device loop or within this call.
  void fail(const Status& why, UniqueFunction<void()> done);
  // Waits for copies on the device, and ends the loop. Call it when the data loops have stopped.
  // Idempotent.
  void stop();

 private:
  class OnLoop;
  using Loop = std::shared_ptr<transport::EventLoop>;

  Loop loop();

  LoopMaker make_loop_;
  const uint64_t max_pinned_bytes_;
  const MutableBytes shared_;
  Metrics& metrics_;
  DeviceStagingEvents* events_ = nullptr;
  Mutex mutex_;
  Loop loop_ BPS_GUARDED_BY(mutex_);  // null: no push_pull of device memory yet
  std::unique_ptr<OnLoop> on_loop_;   // constant once loop_ is set; used on the loop
};

}  // namespace byteps::worker
