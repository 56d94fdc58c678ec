// The RDMA transport's interface to a network card (NIC): memory that the NIC can access, and queue
// pairs that write into another machine's memory.
//
// verbs_nic.h implements it for devices of libibverbs; tests simulate it within one process. The
// only operation is the RDMA write over a reliable connection, with or without 32 bits of immediate
// data that notify the peer. The sender always decides where data goes, so receive requests need no
// memory.
//
// Threads: a Nic is thread-safe; a queue pair or channel is used by one thread at a time. Source:
// InfiniBand Architecture Specification, volume 1, chapters 9 to 11; the manual pages of ibverbs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace byteps::transport::rdma {

using Gid = std::array<uint8_t, 16>;

// One port of a device, at the time it was opened.
struct NicInfo {
  std::string device;        // "mlx5_0"
  int port = 1;              // port number of the device, starting at 1
  bool is_ethernet = false;  // RoCE; otherwise InfiniBand
  std::string interface;     // interface of an Ethernet port, such as "eth0"; otherwise empty
  int mtu_bytes = 1024;      // payload bytes of a packet
  uint16_t lid = 0;          // InfiniBand: address within the subnet
  int gid_index = 0;
  Gid gid{};
  std::string gid_text;            // "::ffff:10.0.0.2 (RoCE v2, index 1)"
  uint64_t max_message_bytes = 0;  // largest size of one write
  // Registrations need no pinning and follow changes of the process's mappings.
  bool on_demand_paging = false;
  std::string to_string() const { return device + " port " + std::to_string(port); }
};

// Keys of memory that a Nic can access.
struct MemoryKey {
  uint32_t local = 0;   // for this end's writes from it
  uint32_t remote = 0;  // for the peer's writes into it
};
enum class Access { kLocal, kRemoteWrite };

// Ends the registration when destroyed; no write may be using it then. The Nic must outlive it.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual MemoryKey key() const = 0;
};

// Parameters to connect to a queue pair; sent to the peer (bootstrap.h).
struct QueuePairAddress {
  uint32_t number = 0;           // 24 bits
  uint32_t packet_sequence = 0;  // 24 bits; number of the first packet that this end sends
  uint16_t lid = 0;
  Gid gid{};
  int mtu_bytes = 1024;
};

struct QueuePairOptions {
  uint32_t max_writes = 256;      // limit of writes posted but not completed
  uint32_t max_arrivals = 256;    // limit of receive requests posted but not completed
  uint32_t max_inline_bytes = 0;  // requested; see QueuePair::max_inline_bytes
};

// One RDMA write. Writes of a queue pair execute and complete in order. The peer gets a write's
// immediate data after the bytes of all earlier writes are in place.
struct Write {
  uint64_t id = 0;         // not 0
  Bytes data = {};         // may be empty
  uint32_t local_key = 0;  // key of `data`
  uint64_t to_address = 0;
  uint32_t to_key = 0;
  std::optional<uint32_t> immediate = {};
  bool completes = false;  // requests a Completion; failed writes always complete
};

struct Completion {
  enum class Kind { kWritten, kArrived };
  Kind kind = Kind::kWritten;  // valid only if ok()
  int status = 0;              // 0: success; else see QueuePair::describe
  uint64_t id = 0;             // the write's: it and all before it are done; 0: of a receive request
  uint32_t immediate = 0;      // kArrived: immediate data
  bool ok() const { return status == 0; }
};

// One end of a reliable connection. After its destruction the NIC accesses no memory for it.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual const QueuePairAddress& address() const = 0;
  // Writes of at most this size are copied when posted, if their `local_key` is 0.
  virtual uint32_t max_inline_bytes() const = 0;
  // Call once. Receive requests may be posted before.
  virtual Status connect(const QueuePairAddress& other) = 0;
  // On an error, an unknown part of the writes was posted and the queue pair is unusable.
  virtual Status post(std::span<const Write> writes) = 0;
  // Posts `count` receive requests, each for one write with immediate data.
  virtual Status post_arrivals(uint32_t count) = 0;
  // Returns the number of completions stored in `into`, oldest first.
  virtual Result<size_t> poll(std::span<Completion> into) = 0;
  // Makes the channel readable at the next completion. Earlier completions may not be signalled, so
  // poll once more after arm().
  virtual Status arm() = 0;
  // Meaning of a Completion's status: "transport retry counter exceeded (12)".
  virtual std::string describe(int status) const = 0;
  // Whether the network, or the other end's queue pair, has failed, and not a request: between the
  // same two cards another queue pair may work.
  virtual bool is_path_failure(int status) const = 0;
  // Fails all outstanding operations, at this end and eventually at the peer. What has arrived before
  // completes first, and each receive request completes.
  virtual void fail() = 0;
};

// A descriptor that signals completions of several queue pairs. Must outlive them.
class CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;
  virtual int fd() const = 0;  // readable when next() has something
  // The `tag` of an armed queue pair with completions, or null if there is none now. Never blocks.
  virtual void* next() = 0;
};

// Events of a device as a whole.
enum class NicEvent { kNone, kPortDown, kPortUp, kGone };

class Nic {
 public:
  virtual ~Nic() = default;
  virtual const NicInfo& info() const = 0;

  // `memory` must stay mapped until the region is destroyed. Pins its pages (unless
  // info().on_demand_paging), which takes some microseconds per MiB. kUnavailable: for instance,
  // the limit of locked memory is exceeded; includes the remedy.
  virtual Result<std::unique_ptr<MemoryRegion>> register_memory(MutableBytes memory, Access access) = 0;
  // Registers memory of another device (GPU), exported as a dma-buf (dma-buf(9)): `bytes` at
  // `offset`, which writes address as if they began at `address`. kUnimplemented: not supported by
  // this device or library.
  virtual Result<std::unique_ptr<MemoryRegion>> register_dmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                                uint64_t address, Access access) = 0;

  virtual Result<std::unique_ptr<CompletionChannel>> make_channel() = 0;
  virtual Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionChannel& channel, void* tag,
                                                             const QueuePairOptions& options) = 0;

  // Readable when next_event() has something. One thread.
  virtual int event_fd() const = 0;
  virtual NicEvent next_event() = 0;  // kNone: nothing now
};

}  // namespace byteps::transport::rdma
