#include "transport/rdma/verbs_device.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

class VerbsRegion final : public MemoryRegion {
 public:
  explicit VerbsRegion(Owned<abi::Mr> mr) : mr_(std::move(mr)) {}
  MemoryKey key() const override { return {mr_->local_key, mr_->remote_key}; }

 private:
  const Owned<abi::Mr> mr_;
};

// With relaxed ordering the NIC may reorder its writes into the memory. Completions are never
// reordered with them, and the memory is not read before its completion.
unsigned flags_of(Access access) {
  unsigned flags = abi::kAccessRelaxedOrdering;
  if (access == Access::kRemoteWrite) flags |= abi::kAccessLocalWrite | abi::kAccessRemoteWrite;
  return flags;
}

std::string in_kib(uint64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

// Errors with which kernels and libraries of various versions reject an unknown feature.
bool is_unknown_to_it(int error_number) {
  return error_number == EOPNOTSUPP || error_number == ENOSYS || error_number == ENOTTY ||
         error_number == EPROTONOSUPPORT;
}

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

Result<std::unique_ptr<MemoryRegion>> register_memory(const VerbsDevice& device, MutableBytes memory,
                                                      Access access, bool on_demand_paging) {
  const VerbsLibrary& verbs = device.verbs;
  unsigned flags = flags_of(access);
  if (on_demand_paging) flags |= abi::kAccessOnDemand;
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  // Only this function accepts flags that a kernel may ignore.
  abi::Mr* mr = verbs.reg_mr_iova2
                    ? verbs.reg_mr_iova2(device.pd.get(), memory.data(), memory.size(), address, flags)
                    : verbs.reg_mr(device.pd.get(), memory.data(), memory.size(),
                                   static_cast<int>(flags & ~abi::kAccessRelaxedOrdering));
  if (!mr) return refusal("registering " + in_kib(memory.size()) + " of memory at " + device.name, errno);
  return std::unique_ptr<MemoryRegion>(std::make_unique<VerbsRegion>(Owned<abi::Mr>(mr, verbs.dereg_mr)));
}

Result<std::unique_ptr<MemoryRegion>> register_dmabuf(const VerbsDevice& device, int fd, uint64_t offset,
                                                      uint64_t bytes, uint64_t address, Access access) {
  const VerbsLibrary& verbs = device.verbs;
  const std::string what = "registering " + in_kib(bytes) + " of a dma-buf at " + device.name;
  if (!verbs.reg_dmabuf_mr) return unimplemented(what + ": expected libibverbs of rdma-core 34 or newer");
  abi::Mr* mr =
      verbs.reg_dmabuf_mr(device.pd.get(), offset, bytes, address, fd, static_cast<int>(flags_of(access)));
  if (!mr && is_unknown_to_it(errno)) {
    return unimplemented(from_errno(what, errno).message() + ": the device's driver cannot");
  }
  if (!mr) return refusal(what, errno);
  return std::unique_ptr<MemoryRegion>(std::make_unique<VerbsRegion>(Owned<abi::Mr>(mr, verbs.dereg_mr)));
}

bool on_demand_paging_works(const VerbsDevice& device) {
  alignas(kPageBytes) static std::byte page[kPageBytes];
  return register_memory(device, page, Access::kRemoteWrite, true).is_ok();
}

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
  int count = 0;
  const std::unique_ptr<abi::Device*, void (*)(abi::Device**)> list(verbs.get_device_list(&count),
                                                                    verbs.free_device_list);
  const std::span devices(list.get(), list ? static_cast<size_t>(count) : 0);
  const auto found = std::ranges::find(devices, name, verbs.get_device_name);
  if (found == devices.end()) {
    return unavailable("libibverbs does not know " + name +
                       ": expected its driver's library: apt-get install ibverbs-providers (Debian, Ubuntu), "
                       "dnf install libibverbs (Fedora, RHEL)");
  }
  Owned<abi::Context> context(verbs.open_device(*found), verbs.close_device);
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
