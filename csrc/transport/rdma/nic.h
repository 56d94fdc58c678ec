// What the RDMA transport needs of a network card, in its own words: memory that the card may reach, and queue pairs
// that write into the memory of another machine.
//
// verbs_nic.h makes one of a device of libibverbs; tests make one of two ends in one process. The only operation is the
// RDMA write over a reliable connection, with or without 32 bits (the "immediate") that tell the other end: what comes
// is then always placed by who sends it, and a receive request needs no memory.
//
// Threads: a Nic may be used from any thread; a queue pair and a channel from one at a time.
// Source: InfiniBand Architecture Specification, volume 1, chapters 9 to 11; the manual pages of ibverbs.
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

// One port of one device, as it was when it was opened.
struct NicInfo {
  std::string device;        // "mlx5_0"
  int port = 1;              // of the device, from 1
  bool is_ethernet = false;  // RoCE; else InfiniBand
  std::string interface;     // the network interface of an Ethernet port, "eth0"; else empty
  int numa_node = -1;        // -1: unknown, or there is one only
  int mtu_bytes = 1024;      // of a packet's payload
  uint64_t mbps = 0;         // 0: unknown
  uint16_t lid = 0;          // InfiniBand: the address within a subnet
  int gid_index = 0;
  Gid gid{};
  std::string gid_text;            // "::ffff:10.0.0.2 (RoCE v2, index 1)"
  uint64_t max_message_bytes = 0;  // of one write
  bool on_demand_paging = false;   // registered memory follows the process's, whatever becomes of it
  std::string to_string() const { return device + " port " + std::to_string(port); }
};

// Memory that a Nic may reach.
struct MemoryKey {
  uint32_t local = 0;   // for this end's writes out of it
  uint32_t remote = 0;  // for writes of the other end into it
};
enum class Access { kLocal, kRemoteWrite };

// Ends the registration when destroyed; no write may be under way in it. The Nic outlives it.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual MemoryKey key() const = 0;
};

// Where a queue pair can be reached; travels to the other end (bootstrap.h).
struct QueuePairAddress {
  uint32_t number = 0;           // 24 bits
  uint32_t packet_sequence = 0;  // 24 bits: of the first packet that this end sends
  uint16_t lid = 0;
  Gid gid{};
  int mtu_bytes = 1024;
};

struct QueuePairOptions {
  uint32_t max_writes = 256;      // posted and not completed
  uint32_t max_arrivals = 256;    // of writes with an immediate, posted and not completed
  uint32_t max_inline_bytes = 0;  // wanted; see QueuePair::max_inline_bytes
};

// One RDMA write. Writes of a queue pair are carried out and complete in order; what a write with an immediate tells
// comes after the bytes of all writes before it are in place.
struct Write {
  uint64_t id = 0;
  Bytes data;              // may be empty
  uint32_t local_key = 0;  // of `data`
  uint64_t to_address = 0;
  uint32_t to_key = 0;
  std::optional<uint32_t> immediate{};
  bool completes = false;  // a Completion is wanted; one that fails completes in any case
};

struct Completion {
  enum class Kind { kWritten, kArrived };
  Kind kind = Kind::kWritten;  // meaningless unless ok()
  int status = 0;              // 0: done; else see QueuePair::describe
  uint64_t id = 0;             // of a write; it and all before it are done
  uint32_t immediate = 0;      // of what has arrived
  bool ok() const { return status == 0; }
};

// A reliable connection's end. Destroyed: the card touches no memory for it any more.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual const QueuePairAddress& address() const = 0;
  // Writes of at most so many bytes are copied when posted, if their `local_key` is 0.
  virtual uint32_t max_inline_bytes() const = 0;
  // Once. Arrivals may be posted before.
  virtual Status connect(const QueuePairAddress& other) = 0;
  // All or, with an error, an unknown part of them: then the queue pair is of no more use.
  virtual Status post(std::span<const Write> writes) = 0;
  // Allows `count` more writes with an immediate to come.
  virtual Status post_arrivals(uint32_t count) = 0;
  // The next completions, oldest first; how many.
  virtual Result<size_t> poll(std::span<Completion> into) = 0;
  // The channel becomes readable at the next completion. What came before may go untold: poll once more after arm().
  virtual Status arm() = 0;
  // What a Completion's status means: "transport retry counter exceeded (12)".
  virtual std::string describe(int status) const = 0;
  // Everything under way fails, on this end and in time on the other. For tests and ends in a hurry.
  virtual void fail() = 0;
};

// A descriptor that tells of completions of several queue pairs. Outlives them.
class CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;
  virtual int fd() const = 0;  // readable: next() has something
  // The `tag` of a queue pair that was armed and has completions; null: none at present. Never blocks.
  virtual void* next() = 0;
};

// What happens to a device as a whole.
enum class NicEvent { kNone, kPortDown, kPortUp, kGone };

class Nic {
 public:
  virtual ~Nic() = default;
  virtual const NicInfo& info() const = 0;

  // `memory` stays mapped until the region is destroyed. Cost: pins its pages (unless info().on_demand_paging), some
  // microseconds for each MiB. kUnavailable: for one, more than the limit of locked memory, with the remedy.
  virtual Result<std::unique_ptr<MemoryRegion>> register_memory(MutableBytes memory, Access access) = 0;
  // Memory of another device (a GPU) that its driver has exported as a dma-buf (dma-buf(9)): `bytes` bytes at `offset` of it,
  // which writes address as if they began at `address`. kUnimplemented: this device or library cannot.
  virtual Result<std::unique_ptr<MemoryRegion>> register_dmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                                uint64_t address, Access access) = 0;

  virtual Result<std::unique_ptr<CompletionChannel>> make_channel() = 0;
  virtual Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionChannel& channel, void* tag,
                                                             const QueuePairOptions& options) = 0;

  // Readable when next_event() has something. One thread.
  virtual int event_fd() const = 0;
  virtual NicEvent next_event() = 0;  // kNone: nothing at present
};

}  // namespace byteps::transport::rdma
