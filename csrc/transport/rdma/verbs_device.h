// A device of libibverbs that has been opened, and what is said when it refuses something.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_library.h"

namespace byteps::transport::rdma {

// What the library has made, with the function that ends it.
template <typename T>
using Owned = std::unique_ptr<T, int (*)(T*)>;

// Any thread. Outlives everything that is made of it.
struct VerbsDevice {
  const VerbsLibrary& verbs;
  std::string name;
  abi::DeviceAttr attr;
  Owned<abi::Context> context;
  Owned<abi::Pd> pd;
};

// kUnavailable: no such device, or it cannot be opened.
Result<std::unique_ptr<VerbsDevice>> open_verbs_device(const VerbsLibrary& verbs, const std::string& name);

// Nic::next_event() of one of its ports. After kGone the descriptor stays readable, and it is kGone again.
NicEvent next_event_of(const VerbsDevice& device, int port);

// "<what>: <strerror>"; for what may be the limit of locked memory also what the limit is, and the remedy. kUnavailable.
Status refusal(const std::string& what, int error_number);

// Pure. `limit_bytes`: RLIM_INFINITY where there is no limit.
std::string advice_on_locked_memory(int error_number, uint64_t limit_bytes);

// kUnavailable if the descriptor cannot be set so.
Status make_nonblocking(int fd);

}  // namespace byteps::transport::rdma
