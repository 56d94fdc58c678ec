// An open device of libibverbs, and messages for its errors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_library.h"

namespace byteps::transport::rdma {

// Owns an object of the library together with its destroying function.
template <typename T>
using Owned = std::unique_ptr<T, int (*)(T*)>;

// Thread-safe. Must outlive everything created from it.
struct VerbsDevice {
  const VerbsLibrary& verbs;
  std::string name;
  abi::DeviceAttr attr;
  Owned<abi::Context> context;
  Owned<abi::Pd> pd;
};

// kUnavailable: no such device, or it cannot be opened.
Result<std::unique_ptr<VerbsDevice>> open_verbs_device(const VerbsLibrary& verbs, const std::string& name);

// Nic::next_event() for one port. After kGone the descriptor stays readable and every call returns
// kGone.
NicEvent next_event_of(const VerbsDevice& device, int port);

// Returns kUnavailable with "<what>: <strerror>" and, if it may be the limit of locked memory, the
// limit and the remedy.
Status refusal(const std::string& what, int error_number);

// Pure. `limit_bytes`: RLIM_INFINITY if there is no limit.
std::string advice_on_locked_memory(int error_number, uint64_t limit_bytes);

// Returns kUnavailable on failure.
Status make_nonblocking(int fd);

}  // namespace byteps::transport::rdma
