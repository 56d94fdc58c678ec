// Copies between host memory and one device, on streams of its own, so that they run beside each
// other and beside the program's work. Copies to the host begin in the order of priority.
//
// Completions: for each direction, a host function on a side stream that waits for the oldest copy
// calls `wake`; the owner then calls poll(), which asks the events. The side stream keeps the host
// function from holding up the next copy. After an error of the device, host functions may never
// run, so the owner also calls poll() now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
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
  // `wake` is called on a thread of CUDA, where no function of CUDA may be called; perhaps later
  // than this object exists.
  static Result<std::unique_ptr<Copier>> create(CudaDevice& device, std::function<void()> wake);
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
  // Calls `done` of the copies that are done, and begins others.
  void poll();
  bool is_idle() const {
    return to_host_.in_flight.empty() && to_device_.in_flight.empty() && waiting_.empty();
  }

 private:
  // Host functions may run late or, after an error of the device, never. So these are not destroyed
  // while one is outstanding.
  struct Waker {
    std::function<void()> wake;
    std::atomic<bool> is_outstanding = false;
  };
  struct InFlight {
    cuda::Event event;
    uint64_t bytes;
    Done done;
  };
  // A stream that only waits, and then has CUDA call `wake`.
  struct Side {
    cuda::Stream stream = nullptr;
    std::unique_ptr<Waker> waker;
  };
  struct Direction {
    cuda::Stream stream = nullptr;
    Side side;
    std::deque<InFlight> in_flight;  // in the order of the stream
    uint64_t bytes = 0;              // in flight
  };

  explicit Copier(CudaDevice& device) : device_(device), cu_(device.cu()) {}
  Status open(const std::function<void()>& wake);
  Status open(cuda::Stream& stream);
  void close(cuda::Stream stream);
  void begin_copies();
  Status begin(ToHost& copy);
  // `done` follows what `direction` has been given so far, which is seen by `event`.
  void follow(Direction& direction, cuda::Event event, uint64_t bytes, Done done);
  // Has CUDA call `wake` when the direction's oldest copy is done.
  void notify(Direction& direction);
  // Has CUDA call `wake` after what `wait` has the side's stream wait for, unless it will call anyway.
  template <typename Wait>
  Status wake_after(Side& side, Wait&& wait);
  static void on_host_function(void* waker);
  void complete(Direction& direction);
  void fail(const Status& why);

  CudaDevice& device_;
  const cuda::Functions& cu_;
  Direction to_host_, to_device_;
  Side inputs_;  // waits for inputs whose copies need the processor
  // By priority, the largest first, then in the order of calls.
  std::map<std::pair<int64_t, uint64_t>, ToHost> waiting_;
  uint64_t last_number_ = 0;
  Status failed_;  // not ok: the device is lost
};

}  // namespace byteps::device
