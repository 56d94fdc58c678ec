#include "device/copier.h"

namespace byteps::device {
namespace {

// Copies to the host that are on the device at the same time. More would delay urgent ones; fewer
// would leave the copy engine without work until poll() begins the next one.
constexpr uint64_t kMaxBytesToHost = 32 << 20;
// Copies to the device that are better put together than begun.
constexpr uint64_t kBusyBytesToDevice = 8 << 20;

}  // namespace

Result<std::unique_ptr<Copier>> Copier::create(CudaDevice& device) {
  std::unique_ptr<Copier> copier(new Copier(device));
  const CurrentContext current(device);
  BPS_RETURN_IF_ERROR(copier->open(copier->to_host_.stream));
  BPS_RETURN_IF_ERROR(copier->open(copier->to_device_.stream));
  return Result<std::unique_ptr<Copier>>(std::move(copier));
}

Status Copier::open(cuda::Stream& stream) {
  return device_.status("cuStreamCreate", cu_.stream_create(&stream, cuda::kStreamNonBlocking));
}

Copier::~Copier() {
  close(to_host_.stream);
  close(to_device_.stream);
}

void Copier::close(cuda::Stream stream) {
  if (stream == nullptr || !CudaDriver::is_usable_here()) return;
  const CurrentContext current(device_);
  const BesideCaptures beside(device_);
  cu_.stream_synchronize(stream);
  cu_.stream_destroy(stream);
}

void Copier::copy_to_host(ToHost copy) {
  if (!failed_.is_ok()) return copy.done(failed_);
  waiting_.emplace(std::pair(-int64_t{copy.priority}, ++last_number_), std::move(copy));
  begin_copies();
}

void Copier::begin_copies() {
  if (waiting_.empty()) return;
  const CurrentContext current(device_);
  const BesideCaptures beside(device_);
  const Transfer* unready = nullptr;
  for (auto next = waiting_.begin(); next != waiting_.end() && to_host_.bytes < kMaxBytesToHost;) {
    const ToHost& copy = next->second;
    if (!copy.is_pinned) {
      // Such a copy occupies this thread until it is done, so its input has to be there first.
      const Result<bool> is_ready =
          copy.transfer.get() == unready ? Result<bool>(false) : copy.transfer->is_input_ready();
      if (!is_ready) return fail(is_ready.status());
      if (!*is_ready) {
        unready = copy.transfer.get();
        ++next;
        continue;
      }
    }
    ToHost begun = std::move(waiting_.extract(next++).mapped());
    if (const Status status = begin(begun); !status.is_ok()) begun.done(status);
  }
}

Status Copier::begin(ToHost& copy) {
  BPS_RETURN_IF_ERROR(copy.transfer->order_after(to_host_.stream));
  const auto event = device_.take_event();
  if (!event) return event.status();
  if (const cuda::Code code = cu_.copy_to_host(copy.to.data(), copy.from, copy.to.size(), to_host_.stream);
      code != cuda::kSuccess) {
    device_.give_back(*event);
    return device_.status("copy to the host", code);
  }
  follow(to_host_, *event, copy.to.size(), std::move(copy.done));
  return Status::ok();
}

Status Copier::copy_to_device(Transfer& transfer, Bytes from, cuda::Address to, Done done) {
  BPS_RETURN_IF_ERROR(failed_);
  const CurrentContext current(device_);
  // The tensor's memory may still be used by what the program has enqueued before.
  BPS_RETURN_IF_ERROR(transfer.order_after(to_device_.stream));
  const auto event = device_.take_event();
  if (!event) return event.status();
  if (const cuda::Code code = cu_.copy_to_device(to, from.data(), from.size(), to_device_.stream);
      code != cuda::kSuccess) {
    device_.give_back(*event);
    return device_.status("copy to the device", code);
  }
  const Status noted = transfer.note_copy_back(to_device_.stream);
  follow(to_device_, *event, from.size(), std::move(done));
  if (!noted.is_ok() && failed_.is_ok()) failed_ = noted;
  return Status::ok();
}

bool Copier::is_device_busy() const { return to_device_.bytes >= kBusyBytesToDevice; }

void Copier::follow(Direction& direction, cuda::Event event, uint64_t bytes, Done done) {
  direction.in_flight.push_back({event, bytes, std::move(done)});
  direction.bytes += bytes;
  const Status status = device_.status("cuEventRecord", cu_.event_record(event, direction.stream));
  // The copy is on the device already: poll() calls its `done`, with this error.
  if (!status.is_ok() && failed_.is_ok()) failed_ = status;
}

bool Copier::poll() {
  if (!failed_.is_ok()) {
    fail(failed_);
    return true;
  }
  const CurrentContext current(device_);
  const BesideCaptures beside(device_);
  const bool to_device = complete(to_device_);
  const bool to_host = complete(to_host_);
  if (!failed_.is_ok()) fail(failed_);
  begin_copies();
  return to_device || to_host;
}

// Returns whether any were done, or have failed.
bool Copier::complete(Direction& direction) {
  bool has_completed = false;
  while (!direction.in_flight.empty()) {
    const cuda::Code code = cu_.event_query(direction.in_flight.front().event);
    if (code == cuda::kErrorNotReady) break;
    has_completed = true;
    if (code != cuda::kSuccess) {
      fail(device_.status("a copy", code));
      break;
    }
    InFlight done = std::move(direction.in_flight.front());
    direction.in_flight.pop_front();
    direction.bytes -= done.bytes;
    device_.give_back(done.event);
    done.done(Status::ok());
  }
  return has_completed;
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
  drop_waiting(failed_);
}

void Copier::drop_waiting(const Status& why) {
  for (auto& [place, copy] : std::exchange(waiting_, {})) copy.done(why);
}

}  // namespace byteps::device
