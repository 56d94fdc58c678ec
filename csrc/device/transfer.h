// The order of one push_pull of device memory among the work of the program's streams: after what
// makes the tensor, and before what uses the result.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/cuda_device.h"

namespace byteps::device {

// Thread-safe.
class Transfer {
 public:
  // What `stream` has been given so far comes before the copies of this push_pull. kInvalidArgument:
  // a CUDA graph is being captured on the stream, which cannot contain a push_pull.
  static Result<std::shared_ptr<Transfer>> begin(CudaDevice& device, cuda::Stream stream);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CudaDevice& device() const { return device_; }

  // What `stream` is given from now on comes after the copies back. Call it when the push_pull's
  // handle is done: the copies are enqueued then, and an event that is not recorded yet orders
  // nothing. Does not wait.
  Status order_before(cuda::Stream stream);
  // For a job of one rank: enqueues a copy of `bytes` bytes on the stream of begin().
  Status copy(cuda::Address to, cuda::Address from, size_t bytes);
  // Whether no copy uses the tensors any more. Call it when the handle is done. Does not wait.
  bool is_complete();

  // For Copier, on its thread. The copies that `stream` is given from now on come after what made the
  // tensor.
  Status order_after(cuda::Stream stream);
  // Whether the device has come to the end of what makes the tensor. An error: the device is lost.
  Result<bool> is_input_ready();
  // All copies back so far are on `stream`.
  Status note_copy_back(cuda::Stream stream);

 private:
  Transfer(CudaDevice& device, cuda::Stream stream, cuda::Event input_ready, cuda::Event done)
      : device_(device), stream_(stream), input_ready_(input_ready), done_(done) {}

  CudaDevice& device_;
  const cuda::Stream stream_;
  const cuda::Event input_ready_;
  const cuda::Event done_;
  std::vector<cuda::Stream> ordered_;         // streams of order_after()
  std::atomic<bool> is_copied_back_ = false;  // done_ is recorded
};

}  // namespace byteps::device
