// A NIC that connections use (a rail), and its per-loop part.
//
// A host may have several rails: NICs, or ports of a NIC. A connection stays on one rail. Memory
// registrations belong to the rail; memory that peers write to and the waiting for completions
// belong to the loop.
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

// Thread-safe. Shared by its users.
class Rail {
 public:
  explicit Rail(std::unique_ptr<Nic> nic);

  Nic& nic() { return *nic_; }
  Registrations& registrations() { return registrations_; }
  // Not ok if the device is gone.
  Status state() const;

 private:
  friend class NicLoop;
  void attach(const std::shared_ptr<NicLoop>& loop);
  void detach(NicLoop* loop);
  // Handles the NIC's events and notifies all loops.
  void read_events();
  void on_gone();

  const std::unique_ptr<Nic> nic_;
  Registrations registrations_;
  Mutex events_mutex_;  // all loops watch the NIC's descriptor
  mutable Mutex mutex_;
  Status state_ BPS_GUARDED_BY(mutex_);
  std::map<NicLoop*, std::weak_ptr<NicLoop>> loops_ BPS_GUARDED_BY(mutex_);
};

// The owner of a queue pair, whose tag points to this object.
class NicClient {
 public:
  virtual ~NicClient() = default;
  // The queue pair was armed and has completions.
  virtual void on_completions() = 0;
  // Must not destroy clients.
  virtual void on_nic_gone(const Status& why) = 0;
};

// Use on the loop's thread, or after the loop has stopped. Shared by the connections and listeners
// of that loop.
class NicLoop final {
 public:
  static Result<std::shared_ptr<NicLoop>> create(EventLoop& loop, std::shared_ptr<Rail> rail);
  ~NicLoop();

  EventLoop& loop() { return loop_; }
  Rail& rail() { return *rail_; }
  // The current state of the rail.
  Status state();
  Arena& arena() { return arena_; }
  // Creates a queue pair of `client`, which must be destroyed before remove().
  Result<std::unique_ptr<QueuePair>> make_queue_pair(NicClient* client, const QueuePairOptions& options);
  void add(NicClient* client) { clients_.insert(client); }
  // No callback of `client` is called afterwards.
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
