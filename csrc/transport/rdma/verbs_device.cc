#include "transport/rdma/verbs_device.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>

namespace byteps::transport::rdma {
namespace {

class DeviceList {
 public:
  explicit DeviceList(const VerbsLibrary& verbs) : verbs_(verbs), list_(verbs.get_device_list(&count_)) {}
  ~DeviceList() {
    if (list_) verbs_.free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  // Returns null if there is none.
  abi::Device* find(const std::string& name) const {
    for (int i = 0; list_ && i < count_; ++i) {
      if (name == verbs_.get_device_name(list_[i])) return list_[i];
    }
    return nullptr;
  }

 private:
  const VerbsLibrary& verbs_;
  int count_ = 0;
  abi::Device** const list_;
};

NicEvent meaning_of(const abi::AsyncEvent& event, int port) {
  const bool of_this_port = event.element.port == port;
  switch (event.type) {
    case abi::kEventDeviceFatal: return NicEvent::kGone;
    case abi::kEventCqError: return NicEvent::kGone;  // no more completions would come
    case abi::kEventPortError: return of_this_port ? NicEvent::kPortDown : NicEvent::kNone;
    case abi::kEventPortActive: return of_this_port ? NicEvent::kPortUp : NicEvent::kNone;
    default: return NicEvent::kNone;  // event of a single queue pair, which its completions report
  }
}

}  // namespace

NicEvent next_event_of(const VerbsDevice& device, int port) {
  for (;;) {
    abi::AsyncEvent event{};
    if (device.verbs.get_async_event(device.context.get(), &event) != 0) {
      return errno == EAGAIN || errno == EINTR ? NicEvent::kNone : NicEvent::kGone;
    }
    const NicEvent meaning = meaning_of(event, port);
    // Acknowledged at once, as destroying an object waits for the acknowledgement of its events.
    device.verbs.ack_async_event(&event);
    if (meaning != NicEvent::kNone) return meaning;
  }
}

std::string advice_on_locked_memory(int error_number, uint64_t limit_bytes) {
  if (error_number != ENOMEM && error_number != EAGAIN && error_number != EPERM) return "";
  if (limit_bytes == RLIM_INFINITY) return ": the device or the machine has no more room";
  return ": the limit of locked memory is " + std::to_string(limit_bytes / 1024) +
         " KiB (ulimit -l), expected more than all that is registered: set `ulimit -l unlimited`, or "
         "LimitMEMLOCK=infinity in the systemd unit, or --ulimit memlock=-1 of docker";
}

Status refusal(const std::string& what, int error_number) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
  const Status status = from_errno(what, error_number);
  return {status.code(), status.message() + advice_on_locked_memory(error_number, limit.rlim_cur)};
}

Status make_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return Status::ok();
  return from_errno("fcntl(O_NONBLOCK) of an RDMA device's descriptor", errno);
}

Result<std::unique_ptr<VerbsDevice>> open_verbs_device(const VerbsLibrary& verbs, const std::string& name) {
  const DeviceList devices(verbs);
  abi::Device* found = devices.find(name);
  if (!found) {
    return unavailable("libibverbs does not know " + name +
                       ": expected its driver's library: apt-get install ibverbs-providers (Debian, Ubuntu), "
                       "dnf install libibverbs (Fedora, RHEL)");
  }
  Owned<abi::Context> context(verbs.open_device(found), verbs.close_device);
  if (!context) return refusal("opening " + name, errno);
  BPS_RETURN_IF_ERROR(make_nonblocking(context->async_fd));
  abi::DeviceAttr attr{};
  if (const int error = verbs.query_device(context.get(), &attr); error != 0) {
    return refusal("ibv_query_device of " + name, error);
  }
  Owned<abi::Pd> pd(verbs.alloc_pd(context.get()), verbs.dealloc_pd);
  if (!pd) return refusal("ibv_alloc_pd of " + name, errno);
  return std::make_unique<VerbsDevice>(VerbsDevice{verbs, name, attr, std::move(context), std::move(pd)});
}

}  // namespace byteps::transport::rdma
