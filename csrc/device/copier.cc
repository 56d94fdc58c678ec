#include "device/copier.h"

#include <atomic>
#include <utility>

namespace byteps::device {
namespace {

// Copies to the host that are on the device at the same time. More would delay urgent ones; fewer
// would leave the copy engine without work until poll() begins the next one.
constexpr uint64_t kMaxBytesInFlight = 32 << 20;

}  // namespace

// Host functions may run late or, after an error of the device, never. So this object is not
// destroyed while some are outstanding.
struct Copier::Waker {
  std::function<void()> wake;
  std::atomic<bool> is_awake = false;  // poll() has not run since the last call of `wake`

  static void on_host_function(void* argument) {
    auto* const waker = static_cast<Waker*>(argument);
    if (!waker->is_awake.exchange(true)) waker->wake();
  }
};

Copier::Copier(CudaDevice& device, std::function<void()> wake)
    : device_(device), cu_(device.cu()), waker_(std::make_unique<Waker>()) {
  waker_->wake = std::move(wake);
}

Result<std::unique_ptr<Copier>> Copier::create(CudaDevice& device, std::function<void()> wake) {
  std::unique_ptr<Copier> copier(new Copier(device, std::move(wake)));
  BPS_RETURN_IF_ERROR(copier->open());
  return Result<std::unique_ptr<Copier>>(std::move(copier));
}

Status Copier::open() {
  const CurrentContext current(device_);
  for (cuda::Stream* const stream :
       {&to_host_.stream, &to_host_.side, &to_device_.stream, &to_device_.side, &ready_side_}) {
    BPS_RETURN_IF_ERROR(
        device_.status("cuStreamCreate", cu_.stream_create(stream, cuda::kStreamNonBlocking)));
  }
  return Status::ok();
}

Copier::~Copier() {
  if (!CudaDriver::is_usable_here()) {
    static_cast<void>(waker_.release());
    return;
  }
  const CurrentContext current(device_);
  bool all_done = true;
  for (const cuda::Stream stream :
       {to_host_.stream, to_host_.side, to_device_.stream, to_device_.side, ready_side_}) {
    if (stream == nullptr) continue;
    all_done &= cu_.stream_synchronize(stream) == cuda::kSuccess;
    cu_.stream_destroy(stream);
  }
  if (!all_done) static_cast<void>(waker_.release());
}

void Copier::copy_to_host(ToHost copy) {
  if (!failed_.is_ok()) return copy.done(failed_);
  waiting_.emplace(std::pair(-int64_t{copy.priority}, ++last_number_), std::move(copy));
  begin_copies();
}

void Copier::begin_copies() {
  const CurrentContext current(device_);
  for (auto next = waiting_.begin(); next != waiting_.end() && to_host_.bytes < kMaxBytesInFlight;) {
    const ToHost& copy = next->second;
    if (!copy.is_pinned) {
      // Such a copy occupies this thread until it is done, so its input has to be there first.
      const Result<bool> is_ready = copy.transfer->is_input_ready();
      if (!is_ready) return fail(is_ready.status());
      if (!*is_ready) {
        if (const Status status = announce(*copy.transfer); !status.is_ok()) return fail(status);
        ++next;
        continue;
      }
    }
    ToHost begun = std::move(waiting_.extract(next++).mapped());
    announced_.erase(begun.transfer.get());
    if (const Status status = begin(begun); !status.is_ok()) begun.done(status);
  }
}

Status Copier::announce(Transfer& transfer) {
  if (!announced_.insert(&transfer).second) return Status::ok();
  BPS_RETURN_IF_ERROR(transfer.order_after(ready_side_));
  return device_.status("cuLaunchHostFunc",
                        cu_.launch_host_func(ready_side_, &Waker::on_host_function, waker_.get()));
}

Status Copier::begin(ToHost& copy) {
  const auto event = device_.take_event();
  if (!event) return event.status();
  BPS_RETURN_IF_ERROR(copy.transfer->order_after(to_host_.stream));
  BPS_RETURN_IF_ERROR(device_.status(
      "copy to the host", cu_.copy_to_host(copy.to.data(), copy.from, copy.to.size(), to_host_.stream)));
  follow(to_host_, *event, copy.to.size(), std::move(copy.done));
  return Status::ok();
}

Status Copier::copy_to_device(Transfer& transfer, Bytes from, cuda::Address to, Done done) {
  BPS_RETURN_IF_ERROR(failed_);
  const CurrentContext current(device_);
  const auto event = device_.take_event();
  if (!event) return event.status();
  // The tensor's memory may still be used by what the program has enqueued before.
  BPS_RETURN_IF_ERROR(transfer.order_after(to_device_.stream));
  BPS_RETURN_IF_ERROR(device_.status(
      "copy to the device", cu_.copy_to_device(to, from.data(), from.size(), to_device_.stream)));
  const Status noted = transfer.note_copy_back(to_device_.stream);
  follow(to_device_, *event, from.size(), std::move(done));
  if (!noted.is_ok() && failed_.is_ok()) failed_ = noted;
  return Status::ok();
}

void Copier::follow(Direction& direction, cuda::Event event, uint64_t bytes, Done done) {
  direction.in_flight.push_back({event, bytes, std::move(done)});
  direction.bytes += bytes;
  Status status = device_.status("cuEventRecord", cu_.event_record(event, direction.stream));
  if (status.is_ok()) status = notify(direction.side, event);
  // The copy is on the device already: poll() calls its `done`, with this error.
  if (!status.is_ok() && failed_.is_ok()) failed_ = status;
}

Status Copier::notify(cuda::Stream side, cuda::Event event) {
  BPS_RETURN_IF_ERROR(device_.status("cuStreamWaitEvent", cu_.stream_wait_event(side, event, 0)));
  return device_.status("cuLaunchHostFunc",
                        cu_.launch_host_func(side, &Waker::on_host_function, waker_.get()));
}

void Copier::poll() {
  waker_->is_awake = false;
  if (!failed_.is_ok()) return fail(failed_);
  complete(to_device_);
  complete(to_host_);
  if (failed_.is_ok()) begin_copies();
}

void Copier::complete(Direction& direction) {
  while (!direction.in_flight.empty()) {
    const cuda::Code code = cu_.event_query(direction.in_flight.front().event);
    if (code == cuda::kErrorNotReady) return;
    if (code != cuda::kSuccess) return fail(device_.status("a copy", code));
    InFlight done = std::move(direction.in_flight.front());
    direction.in_flight.pop_front();
    direction.bytes -= done.bytes;
    device_.give_back(done.event);
    done.done(Status::ok());
  }
}

// CUDA does nothing more in a context that has failed, so nothing uses the memory any more.
void Copier::fail(const Status& why) {
  if (failed_.is_ok()) failed_ = why;
  for (Direction* const direction : {&to_host_, &to_device_}) {
    direction->bytes = 0;
    for (InFlight& each : std::exchange(direction->in_flight, {})) {
      device_.give_back(each.event);
      each.done(failed_);
    }
  }
  announced_.clear();
  for (auto& [place, copy] : std::exchange(waiting_, {})) copy.done(failed_);
}

}  // namespace byteps::device
