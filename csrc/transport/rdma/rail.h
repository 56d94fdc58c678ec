// A network card that connections go through, and its part on each event loop.
//
// A host may have several cards, or ports of a card: its rails. A connection stays on one rail. What a card knows of memory
// is the rail's; memory that others write to, and the waiting for completions, is the loop's.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "base/annotations.h"
#include "transport/epoll_loop.h"
#include "transport/rdma/arena.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/registrations.h"

namespace byteps::transport::rdma {

class NicLoop;

// Any thread. Held by whoever uses it.
class Rail {
 public:
  explicit Rail(std::unique_ptr<Nic> nic);

  Nic& nic() { return *nic_; }
  Registrations& registrations() { return registrations_; }
  // Not ok: the device is gone.
  Status state() const;

 private:
  friend class NicLoop;
  void attach(const std::shared_ptr<NicLoop>& loop);
  void detach(NicLoop* loop);
  // What the card has to say; tells all loops.
  void read_events();
  void on_gone();

  const std::unique_ptr<Nic> nic_;
  Registrations registrations_;
  Mutex events_mutex_;  // each loop watches the card
  mutable Mutex mutex_;
  Status state_ BPS_GUARDED_BY(mutex_);
  std::map<NicLoop*, std::weak_ptr<NicLoop>> loops_ BPS_GUARDED_BY(mutex_);
};

// The owner of a queue pair; the tag of that is a pointer to this.
class NicClient {
 public:
  virtual ~NicClient() = default;
  // The queue pair was armed and has completions.
  virtual void on_completions() = 0;
  // May not destroy clients.
  virtual void on_nic_gone(const Status& why) = 0;
};

// On its loop's thread, or after the loop has stopped. Held by the connections and listeners of the loop.
class NicLoop final {
 public:
  static Result<std::shared_ptr<NicLoop>> create(EventLoop& loop, std::shared_ptr<Rail> rail);
  ~NicLoop();

  EventLoop& loop() { return loop_; }
  Rail& rail() { return *rail_; }
  // The card's, as of now.
  Status state();
  Arena& arena() { return arena_; }
  // With a client's queue pair, which has to go before remove().
  Result<std::unique_ptr<QueuePair>> make_queue_pair(NicClient* client, const QueuePairOptions& options);
  void add(NicClient* client) { clients_.insert(client); }
  // Nothing of it is called any more.
  void remove(NicClient* client) { clients_.erase(client); }

 private:
  friend class Rail;
  struct Handler final : FdHandler {
    explicit Handler(UniqueFunction<void()> on_readable) : on_readable(std::move(on_readable)) {}
    void on_ready(uint32_t) override { on_readable(); }
    UniqueFunction<void()> on_readable;
  };

  NicLoop(EventLoop& loop, std::shared_ptr<Rail> rail);
  Status open();
  void read_channel();
  void on_gone(const Status& why);

  EpollLoop& loop_;
  const std::shared_ptr<Rail> rail_;
  Arena arena_;
  std::unique_ptr<CompletionChannel> channel_;
  Handler channel_handler_;
  Handler event_handler_;
  bool watches_channel_ = false;
  bool watches_events_ = false;
  std::set<NicClient*> clients_;
};

}  // namespace byteps::transport::rdma
