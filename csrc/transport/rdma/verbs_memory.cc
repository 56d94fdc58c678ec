#include "transport/rdma/verbs_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace byteps::transport::rdma {
namespace {

class VerbsRegion final : public MemoryRegion {
 public:
  explicit VerbsRegion(Owned<abi::Mr> mr) : mr_(std::move(mr)) {}
  MemoryKey key() const override { return {mr_->local_key, mr_->remote_key}; }

 private:
  const Owned<abi::Mr> mr_;
};

unsigned flags_of(Access access, const MemoryOptions& options) {
  unsigned flags = 0;
  if (access == Access::kRemoteWrite) flags |= abi::kAccessLocalWrite | abi::kAccessRemoteWrite;
  if (options.relaxed_ordering) flags |= abi::kAccessRelaxedOrdering;
  return flags;
}

std::string in_kib(uint64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

// Errors with which kernels and libraries of various versions reject an unknown feature.
bool is_unknown_to_it(int error_number) {
  return error_number == EOPNOTSUPP || error_number == ENOSYS || error_number == ENOTTY ||
         error_number == EPROTONOSUPPORT;
}

}  // namespace

Result<std::unique_ptr<MemoryRegion>> register_memory(const VerbsDevice& device, MutableBytes memory,
                                                      Access access, const MemoryOptions& options) {
  const VerbsLibrary& verbs = device.verbs;
  unsigned flags = flags_of(access, options);
  if (options.on_demand_paging) flags |= abi::kAccessOnDemand;
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
                                                      uint64_t bytes, uint64_t address, Access access,
                                                      const MemoryOptions& options) {
  const VerbsLibrary& verbs = device.verbs;
  const std::string what = "registering " + in_kib(bytes) + " of a dma-buf at " + device.name;
  if (!verbs.reg_dmabuf_mr) return unimplemented(what + ": expected libibverbs of rdma-core 34 or newer");
  abi::Mr* mr = verbs.reg_dmabuf_mr(device.pd.get(), offset, bytes, address, fd,
                                    static_cast<int>(flags_of(access, options)));
  if (!mr && is_unknown_to_it(errno)) {
    return unimplemented(from_errno(what, errno).message() + ": the device's driver cannot");
  }
  if (!mr) return refusal(what, errno);
  return std::unique_ptr<MemoryRegion>(std::make_unique<VerbsRegion>(Owned<abi::Mr>(mr, verbs.dereg_mr)));
}

bool on_demand_paging_works(const VerbsDevice& device) {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const bool works =
      register_memory(device, {static_cast<std::byte*>(page), page_bytes}, Access::kRemoteWrite,
                      {.relaxed_ordering = false, .on_demand_paging = true})
          .is_ok();
  ::munmap(page, page_bytes);
  return works;
}

}  // namespace byteps::transport::rdma
