// Internals of a FakeFabric, as its wire sees them: NICs, registered memory, ends of connections,
// and the execution of writes. See fake_nic.h for the guarantees.
//
// Threads: a Wire, its NICs' counters and its ends are used by the wire's thread only
// (fake_wire_thread.h); FdQueue and CompletionQueue are shared with other threads.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/check.h"
#include "base/unique_fd.h"
#include "support/fake_nic.h"

namespace byteps::transport::rdma::fake {

// A thread-safe queue with a descriptor that is readable while the queue is not empty.
template <typename T>
class FdQueue {
 public:
  FdQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    BPS_CHECK(fd_.valid()) << "eventfd";
  }
  int fd() const { return fd_.get(); }
  void push(T value) {
    MutexLock lock(mutex_);
    values_.push_back(std::move(value));
    eventfd_write(fd_.get(), 1);
  }
  std::optional<T> pop() {
    MutexLock lock(mutex_);
    if (values_.empty()) return std::nullopt;
    T value = std::move(values_.front());
    values_.pop_front();
    take_one();
    return value;
  }
  template <typename F>
  void remove_if(F is_removed) {
    MutexLock lock(mutex_);
    for (auto left = std::erase_if(values_, is_removed); left > 0; --left) take_one();
  }

 private:
  void take_one() {
    eventfd_t one = 0;
    eventfd_read(fd_.get(), &one);
  }
  const UniqueFd fd_;
  Mutex mutex_;
  std::deque<T> values_ BPS_GUARDED_BY(mutex_);
};

class CompletionQueue;
struct ChannelEvent {
  const CompletionQueue* queue = nullptr;
  void* tag = nullptr;
};

struct Done {
  Completion completion;
  // Number of the queue pair's writes that have finished so far, this one included.
  uint64_t writes = 0;
};

// The completions of one queue pair. The channel must outlive it.
class CompletionQueue {
 public:
  CompletionQueue(FdQueue<ChannelEvent>& channel, void* tag) : channel_(channel), tag_(tag) {}
  ~CompletionQueue();
  void push(const Done& done);
  std::optional<Done> pop();
  void arm();

 private:
  FdQueue<ChannelEvent>& channel_;
  void* const tag_;
  Mutex mutex_;
  std::deque<Done> done_ BPS_GUARDED_BY(mutex_);
  bool is_armed_ BPS_GUARDED_BY(mutex_) = false;
};

struct Card {
  NicInfo info;            // constant
  FakeNicOptions options;  // constant
  FdQueue<NicEvent> events;
  FakeNicStatistics statistics;
  std::deque<Status> registration_failures;
  std::deque<Status> queue_pair_failures;
  std::deque<Status> connect_failures;
  bool is_up = true;
  bool is_gone = false;
};

// The two cards in a canonical order.
std::pair<const Card*, const Card*> between(const Card& one, const Card& other);

struct Region {
  Card* card = nullptr;
  uint64_t address = 0;   // the address that writes use
  MutableBytes memory{};  // the actual memory
  Access access = Access::kLocal;
  bool is_dmabuf = false;  // pins no pages of the process
  MemoryKey key{};
  // The memory of [at, at + bytes); null if it is not within the region.
  std::byte* find(uint64_t at, uint64_t bytes) const;
  uint64_t pages() const;
};

struct PostedWrite {
  Write write;
  bool is_inlined = false;
  std::vector<std::byte> inlined;
  std::optional<size_t> hash;  // hash of the data when it was posted
};

// Why the oldest write of an end cannot be executed now.
enum class Obstacle { kNone, kAbsent, kUnreachable, kReceiverNotReady };

struct End {
  Card* card = nullptr;
  CompletionQueue* completions = nullptr;
  QueuePairAddress address;
  std::optional<QueuePairAddress> other;  // set once connected
  bool has_failed = false;
  std::deque<PostedWrite> writes;
  uint64_t writes_left = 0;  // total number of writes that were executed or failed
  uint32_t arrivals = 0;
  TimeUs front_since_us = kNever;
  Obstacle obstacle = Obstacle::kNone;
  TimeUs hindered_since_us = 0;
};

class Wire {
 public:
  explicit Wire(const FakeFabricOptions& options) : options(options) {}

  FakeFabricOptions options;
  FakeFabricStatistics statistics;
  uint16_t cards_made = 0;

  bool is_empty() const { return cards_.empty(); }
  void add(Card& card) { cards_.insert(&card); }
  void remove(Card& card);
  void cut(const Card& one, const Card& other) { cuts_.insert(between(one, other)); }
  void mend(const Card& one, const Card& other) { cuts_.erase(between(one, other)); }
  void be_gone(Card& card);

  // Assigns keys that were never used on this fabric.
  Result<MemoryKey> add_region(Region region);
  void remove_region(const MemoryKey& key);

  Result<End*> add_end(Card& card, CompletionQueue& completions);
  void remove_end(const End& end);
  void post(End& end, std::vector<PostedWrite> writes);
  void post_arrivals(End& end, uint32_t count);
  void fail(End& end);

  // Executes at most one write per end. Returns the time of the next call, unless something happens
  // before.
  TimeUs step(TimeUs now);

 private:
  TimeUs advance(End& end, TimeUs now);
  TimeUs hinder(End& end, Obstacle obstacle, TimeUs now);
  Obstacle find_other(const End& from, End*& to) const;
  const Region* find_region(const Card& card, uint32_t MemoryKey::* which, uint32_t key) const;
  const std::byte* find_source(const End& end, const PostedWrite& posted) const;
  int check_source(const End& end, const PostedWrite& posted);
  std::byte* find_target(const End& to, const Write& write);
  void apply(End& from, End& to, std::byte* target);
  void fail_front(End& end, int status);
  void flush(End& end);
  static void complete_front(End& end, int status);

  std::set<Card*> cards_;
  std::set<std::pair<const Card*, const Card*>> cuts_;
  std::map<uint32_t, Region> regions_;  // by local key
  std::set<uint32_t> freed_keys_;
  std::map<uint32_t, std::unique_ptr<End>> ends_;  // by queue pair number
  uint32_t next_key_ = 0x1001;
  uint32_t next_number_ = 0x101;
};

}  // namespace byteps::transport::rdma::fake
