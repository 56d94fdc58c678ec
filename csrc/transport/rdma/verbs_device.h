// Options of connections over libibverbs; an open device, memory registered with it, and messages
// for its errors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_library.h"

namespace byteps::transport::rdma {

struct VerbsOptions {
  int gid_index = -1;  // -1: chosen by choose_gid() of gid.h
  // 0 to 255; on RoCE v2 the IP header's field, whose upper six bits are the DSCP
  int traffic_class = 0;
  int service_level = 0;  // 0 to 15; on RoCE in VLANs the priority, 0 to 7
  // A packet is retransmitted after 4.096 us * 2^timeout without an acknowledgement (timeout: 0 to
  // 31; NICs may take up to four times as long), at most `retries` times (0 to 7). 18 and 6 give up
  // some ten seconds after the peer has gone. With 7 Soft-RoCE never gives up.
  int timeout = 18;
  int retries = 6;
};

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

// Implementations of Nic's functions of the same names; thread-safe.
Result<std::unique_ptr<MemoryRegion>> register_memory(const VerbsDevice& device, MutableBytes memory,
                                                      Access access, bool on_demand_paging);
Result<std::unique_ptr<MemoryRegion>> register_dmabuf(const VerbsDevice& device, int fd, uint64_t offset,
                                                      uint64_t bytes, uint64_t address, Access access);

// Whether the device supports memory that is not pinned; tries it with one page.
bool on_demand_paging_works(const VerbsDevice& device);

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
