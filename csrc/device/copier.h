// Copies between host memory and one device, on streams of its own, so that they run beside each
// other and beside the program's work. Copies to the host begin in the order of priority.
//
// Completions: the owner calls poll() again and again, which asks the events. Host functions of CUDA
// would tell of them, too, but up to 600 us late where processes share a device: the stream that has
// to wait for the copy waits for its process's next time slice as well.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/unique_function.h"
#include "device/cuda_device.h"
#include "device/transfer.h"

namespace byteps::device {

// One thread at a time.
class Copier {
 public:
  // The host memory, or the tensor, is not used any more. An error: nothing was copied.
  using Done = UniqueFunction<void(const Status&)>;
  static Result<std::unique_ptr<Copier>> create(CudaDevice& device);
  // Waits for copies on the device; the others are dropped without their `done`.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Copies a piece of a tensor to the host when what makes the tensor is done. `is_pinned`: `to` is
  // pinned memory. `done` is called by this function or by poll().
  struct ToHost {
    std::shared_ptr<Transfer> transfer;
    cuda::Address from;
    MutableBytes to;
    bool is_pinned;
    int32_t priority;  // larger ones begin first
    Done done;
  };
  void copy_to_host(ToHost copy);
  // Enqueues a copy of `from` to the tensor at `to`. If this returns an error, nothing was
  // enqueued, and `done` is not called.
  Status copy_to_device(Transfer& transfer, Bytes from, cuda::Address to, Done done);
  // Whether a further copy to the device would only wait behind others.
  bool is_device_busy() const;

  // Copies to the host that have not begun fail with `why`.
  void drop_waiting(const Status& why);
  // Calls `done` of the copies that are done, and begins others. Returns whether any were done. Waits
  // only for copies to memory that is not pinned.
  bool poll();
  bool is_idle() const {
    return to_host_.in_flight.empty() && to_device_.in_flight.empty() && waiting_.empty();
  }

 private:
  struct InFlight {
    cuda::Event event;
    uint64_t bytes;
    Done done;
  };
  struct Direction {
    cuda::Stream stream = nullptr;
    std::deque<InFlight> in_flight;  // in the order of the stream
    uint64_t bytes = 0;              // in flight
  };

  explicit Copier(CudaDevice& device) : device_(device), cu_(device.cu()) {}
  Status open(cuda::Stream& stream);
  void close(cuda::Stream stream);
  void begin_copies();
  Status begin(ToHost& copy);
  // `done` follows what `direction` has been given so far, which is seen by `event`.
  void follow(Direction& direction, cuda::Event event, uint64_t bytes, Done done);
  bool complete(Direction& direction);
  void fail(const Status& why);

  CudaDevice& device_;
  const cuda::Functions& cu_;
  Direction to_host_, to_device_;
  // By priority, the largest first, then in the order of calls.
  std::map<std::pair<int64_t, uint64_t>, ToHost> waiting_;
  uint64_t last_number_ = 0;
  Status failed_;  // not ok: the device is lost
};

}  // namespace byteps::device
