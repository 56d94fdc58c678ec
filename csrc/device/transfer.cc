#include "device/transfer.h"

#include <algorithm>

namespace byteps::device {

Result<std::shared_ptr<Transfer>> Transfer::begin(CudaDevice& device, cuda::Stream stream) {
  if (!CudaDriver::is_usable_here())
    return failed_precondition("CUDA cannot be used in a process that was forked from one that uses it");
  const CurrentContext current(device);
  const cuda::Functions& cu = device.cu();
  int capture = cuda::kCaptureNone;
  BPS_RETURN_IF_ERROR(device.status("cuStreamIsCapturing", cu.stream_is_capturing(stream, &capture)));
  if (capture != cuda::kCaptureNone) {
    return invalid_argument(device.text() +
                            ": a CUDA graph is being captured on this stream: expected no push_pull within "
                            "it, because it needs the other ranks: call push_pull outside the graph");
  }
  auto ready = device.take_event();
  if (!ready) return ready.status();
  auto done = device.take_event();
  if (!done) return done.status();
  std::shared_ptr<Transfer> transfer(new Transfer(device, stream, *ready, *done));
  BPS_RETURN_IF_ERROR(device.status("cuEventRecord", cu.event_record(*ready, stream)));
  return transfer;
}

// A wait refers to the event's last record at the time of the call, so events may be used again
// although streams still wait.
Transfer::~Transfer() {
  device_.give_back(input_ready_);
  device_.give_back(done_);
}

Status Transfer::order_before(cuda::Stream stream) {
  if (!is_copied_back_) return Status::ok();
  const CurrentContext current(device_);
  return device_.status("cuStreamWaitEvent", device_.cu().stream_wait_event(stream, done_, 0));
}

Status Transfer::copy(cuda::Address to, cuda::Address from, size_t bytes) {
  const CurrentContext current(device_);
  BPS_RETURN_IF_ERROR(
      device_.status("copy on the device", device_.cu().copy_on_device(to, from, bytes, stream_)));
  return note_copy_back(stream_);
}

bool Transfer::is_complete() {
  if (!is_copied_back_ || !CudaDriver::is_usable_here()) return true;
  const BesideCaptures beside(device_);
  return device_.cu().event_query(done_) != cuda::kErrorNotReady;
}

Status Transfer::order_after(cuda::Stream stream) {
  if (std::ranges::find(ordered_, stream) != ordered_.end()) return Status::ok();
  ordered_.push_back(stream);
  return device_.status("cuStreamWaitEvent", device_.cu().stream_wait_event(stream, input_ready_, 0));
}

Result<bool> Transfer::is_input_ready() {
  const cuda::Code code = device_.cu().event_query(input_ready_);
  if (code == cuda::kErrorNotReady) return false;
  BPS_RETURN_IF_ERROR(device_.status("cuEventQuery", code));
  return true;
}

Status Transfer::note_copy_back(cuda::Stream stream) {
  BPS_RETURN_IF_ERROR(device_.status("cuEventRecord", device_.cu().event_record(done_, stream)));
  is_copied_back_ = true;
  return Status::ok();
}

}  // namespace byteps::device
