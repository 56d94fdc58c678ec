// Simulated NICs: the NICs of a FakeFabric write into each other's memory within one process.
//
// They are as strict as hardware. Keys, ranges, access rights and states are checked, an error
// fails the queue pair with the status that a NIC would report, and errors that hardware may not
// detect are counted (FakeFabricStatistics::mistakes). One thread of the fabric, the wire, executes
// writes some time after post() has returned. It is synchronized with a test's threads only as
// hardware is: a post happens before its write, a write before its completion. So ThreadSanitizer
// detects memory that is used or changed too early. (Registering, deregistering, creating,
// connecting, failing and destroying objects, and the functions of this header, wait for the wire.)
//
// Threads: the fabric and its NICs are thread-safe; a queue pair or channel is used by one thread
// at a time, as in nic.h. The fabric must outlive its NICs, and a NIC everything created from it;
// otherwise the program aborts.
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

// Statuses of completions, with the numbers of libibverbs.
inline constexpr int kLocalLengthError = 1;
inline constexpr int kLocalProtectionError = 4;
inline constexpr int kFlushed = 5;
inline constexpr int kRemoteAccessError = 10;
inline constexpr int kRetryExceeded = 12;
inline constexpr int kReceiverNotReadyExceeded = 13;

struct FakeFabricOptions {
  // Delay of each write at the head of its queue; kNever: no write is executed.
  TimeUs delay_us = 0;
  // Time until failure if the peer's queue pair does not exist, has failed or was destroyed.
  TimeUs absent_retry_us = 20'000;
  // Time until failure if the link is cut, a port is down or the peer is not connected yet.
  TimeUs unreachable_retry_us = kNever;
  TimeUs receiver_not_ready_retry_us = kNever;
};

struct FakeNicOptions {
  std::string device = "fake0";
  bool is_ethernet = true;
  std::string interface = "";
  int mtu_bytes = 4096;
  uint64_t max_message_bytes = uint64_t{1} << 30;  // 4096: splits messages
  uint32_t max_inline_bytes = 220;                 // limit of what queue pairs are granted
  uint64_t memlock_bytes = UINT64_MAX;             // in whole pages; ignored with on_demand_paging
  bool on_demand_paging = false;
  bool takes_dmabuf = false;  // simulated with a memfd
};

struct FakeNicStatistics {
  uint64_t registrations = 0;         // in total
  uint64_t failed_registrations = 0;  // in total
  uint64_t registered_pages = 0;      // in total
  uint64_t live_regions = 0;
  uint64_t live_pages = 0;
  uint64_t live_bytes = 0;
  uint64_t live_queue_pairs = 0;
};

struct FakeFabricStatistics {
  uint64_t writes = 0;  // executed
  uint64_t immediates = 0;
  uint64_t bytes = 0;
  // Errors of the code under test; each write is counted once:
  uint64_t receiver_not_ready = 0;  // had to wait until a receive request was posted
  uint64_t local_protection_errors = 0;
  uint64_t remote_access_errors = 0;
  uint64_t writes_from_freed_regions = 0;  // included in the local protection errors
  uint64_t writes_into_freed_regions = 0;  // included in the remote access errors
  uint64_t changed_while_posted = 0;       // the data changed between post() and its execution
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
  // Makes one more registration fail.
  void fail_next_registration(Status why);
  void fail_next_queue_pair(Status why);
  void fail_next_connect(Status why);  // of a queue pair
  void set_port(bool is_up);           // raises an event; writes from and to the port wait while it is down
  void be_gone();                      // raises an event; queue pairs and new requests fail

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

  // Each NIC has an address of its own.
  std::unique_ptr<FakeNic> make_nic(FakeNicOptions options = {});
  void set_options(FakeFabricOptions options);  // also affects waiting writes
  // Writes between the two wait (FakeFabricOptions::unreachable_retry_us) until mended.
  void cut(const FakeNic& one, const FakeNic& other);
  void mend(const FakeNic& one, const FakeNic& other);
  FakeFabricStatistics statistics() const;

 private:
  const std::unique_ptr<fake::WireThread> thread_;
};

}  // namespace byteps::transport::rdma
