// Network cards without hardware: the cards of a FakeFabric write into each other's memory, in one process.
//
// As strict as hardware: keys, ranges, access and state are checked, a mistake ends the queue pair with the status that a
// card would give, and what hardware may let pass is counted (FakeFabricStatistics::mistakes). Writes are carried out
// by one thread of the fabric, the wire, some time after post() has returned. Between that thread and those of a test
// there is no order but what hardware gives as well: a post comes before its write, a write before its completion. So
// ThreadSanitizer sees memory that is used too early, or changed too early. (Registering, deregistering, making,
// connecting, failing and destroying, and the calls of this header, do wait for the wire.)
//
// Threads: the fabric and its cards from any; a queue pair and a channel from one at a time, as nic.h has it. The fabric
// outlives its cards, a card what it has made; the opposite order ends the program.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "transport/rdma/nic.h"

namespace byteps::transport::rdma {

namespace fake {
class Wire;
class WireThread;
struct Card;
}  // namespace fake

// Statuses of completions: the numbers are those of libibverbs.
inline constexpr int kLocalLengthError = 1;
inline constexpr int kLocalProtectionError = 4;
inline constexpr int kFlushed = 5;
inline constexpr int kRemoteAccessError = 10;
inline constexpr int kRetryExceeded = 12;
inline constexpr int kReceiverNotReadyExceeded = 13;

struct FakeFabricOptions {
  TimeUs delay_us = 0;  // each write waits so long at the front; kNever: the wire stands still
  TimeUs absent_retry_us =
      20'000;  // nothing answers: no such queue pair, or one that failed or was destroyed
  TimeUs unreachable_retry_us = kNever;  // cut off, a port is down, or the other end is not connected yet
  TimeUs receiver_not_ready_retry_us = kNever;
};

struct FakeNicOptions {
  std::string device = "fake0";
  bool is_ethernet = true;
  std::string interface = "";
  int numa_node = -1;
  int mtu_bytes = 4096;
  uint64_t mbps = 100'000;
  uint64_t max_message_bytes = uint64_t{1} << 30;  // 4096: to see messages split
  uint32_t max_inline_bytes = 220;                 // what queue pairs get of what they want
  uint64_t memlock_bytes = UINT64_MAX;             // in whole pages; of no effect with on_demand_paging
  bool on_demand_paging = false;
  bool takes_dmabuf = false;  // a memfd plays the dma-buf
};

struct FakeNicStatistics {
  uint64_t registrations = 0;         // ever
  uint64_t failed_registrations = 0;  // ever
  uint64_t registered_pages = 0;      // ever
  uint64_t live_regions = 0;
  uint64_t live_pages = 0;
  uint64_t live_bytes = 0;
  uint64_t live_queue_pairs = 0;
};

struct FakeFabricStatistics {
  uint64_t writes = 0;  // carried out
  uint64_t immediates = 0;
  uint64_t bytes = 0;
  // Mistakes of the code under test, each write counted once:
  uint64_t receiver_not_ready = 0;  // had to wait until an arrival was posted
  uint64_t local_protection_errors = 0;
  uint64_t remote_access_errors = 0;
  uint64_t writes_from_freed_regions = 0;  // among the local protection errors
  uint64_t writes_into_freed_regions = 0;  // among the remote access errors
  uint64_t changed_while_posted = 0;       // the data was another when it was read than when it was posted
  uint64_t mistakes() const {
    return receiver_not_ready + local_protection_errors + remote_access_errors + changed_while_posted;
  }
};

class FakeNic final : public Nic {
 public:
  ~FakeNic() override;

  const NicInfo& info() const override;
  Result<std::unique_ptr<MemoryRegion>> register_memory(MutableBytes memory, Access access) override;
  Result<std::unique_ptr<MemoryRegion>> register_dmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                        uint64_t address, Access access) override;
  Result<std::unique_ptr<CompletionChannel>> make_channel() override;
  Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionChannel& channel, void* tag,
                                                     const QueuePairOptions& options) override;
  int event_fd() const override;
  NicEvent next_event() override;

  FakeNicStatistics statistics() const;
  // One registration fails, or one more after those that were asked for before.
  void fail_next_registration(Status why);
  void fail_next_queue_pair(Status why);
  void set_port(bool is_up);  // tells with an event; writes from and to it wait while it is down
  void be_gone();             // tells with an event; queue pairs fail, and nothing new can be made

 private:
  friend class FakeFabric;
  FakeNic(fake::WireThread& thread, std::unique_ptr<fake::Card> card);

  fake::WireThread& thread_;
  const std::unique_ptr<fake::Card> card_;
};

class FakeFabric {
 public:
  explicit FakeFabric(FakeFabricOptions options = {});
  ~FakeFabric();

  // Each has an address of its own.
  std::unique_ptr<FakeNic> make_nic(FakeNicOptions options = {});
  void set_options(FakeFabricOptions options);  // for what waits already, too
  // Writes between the two wait (FakeFabricOptions::unreachable_retry_us) until mended.
  void cut(const FakeNic& one, const FakeNic& other);
  void mend(const FakeNic& one, const FakeNic& other);
  FakeFabricStatistics statistics() const;

 private:
  const std::unique_ptr<fake::WireThread> thread_;
};

}  // namespace byteps::transport::rdma
