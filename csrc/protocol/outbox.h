// The order in which frames are handed to a connection: by priority, within a credit. Pure.
//
// Credit bounds the bytes handed to a connection that are not on the wire yet. So an urgent
// partition waits for at most that many bytes of less urgent ones, or for one larger partition.
// Credit returns when bytes are written, not when a round ends: that could deadlock workers whose
// tensors become ready in different orders. Each connection has its own credit: with a common one a
// slow connection would hold up the others (measured: twice the time).
//
// Two workers that have roots for each other have two connections in each direction: one for
// contributions, one for answers. Where they *take turns* (Tree::take_turns), answers wait until the
// contributions to the same peer are written, so that one connection at a time has the whole card.
// It recovers from a loss in less time than two with half of the card each, and needs no limit: two
// workers at 200 Mbit/s summed 16 MiB in 0.72 instead of 0.78 s with 1 % of losses, in 0.76 instead of
// 0.78 s with a delay of 20 ms, in 0.80 instead of 0.89 s with both. On a short clean path turns gain
// nothing, and at 10 Gbit/s 64 MiB took 0.068 instead of 0.063 s: the sums have left the caches when
// they are sent.
//
// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training
// Acceleration" (ByteScheduler), SOSP 2019, section 4.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/unique_function.h"
#include "protocol/pacing.h"

namespace byteps::protocol {

// The credit of the connections of one event loop; each connection has a Port. Not thread-safe.
class Outbox {
 public:
  enum class Kind : uint8_t { kContribution, kAnswer };
  struct Peer {
    uint32_t node = 0;
    uint32_t shard = 0;
    auto operator<=>(const Peer&) const = default;
  };
  // Hands the bytes to their connection, which reports when they are written (Port::sent).
  using Send = UniqueFunction<void()>;

  // `credit_bytes`: of each port.
  explicit Outbox(uint64_t credit_bytes) : credit_bytes_(credit_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  class Port;
  // The two ports of a peer; null: there is none now.
  struct Turns {
    Port* contributions = nullptr;
    Port* answers = nullptr;
  };

  class Port {
   public:
    // `kind`: of all that it carries.
    Port(Outbox& outbox, Kind kind) : outbox_(outbox), kind_(kind) {}
    ~Port();
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

    // This port leads to this shard of a node. An answer waits while unwritten contributions to the
    // same shard are at least as urgent. Before a port is destroyed that has any, it must be closed.
    void take_turns(const Peer& peer);
    bool takes_turns() const { return turns_ != nullptr; }
    // `send` is called now or later, unless close() comes first. Order: larger `priority` first,
    // then the order of the calls. The first in order is never overtaken by a smaller one.
    void push(int32_t priority, uint64_t bytes, Send send);
    // `bytes` that were handed over have been written. Reports that arrive after close() are
    // ignored.
    void sent(uint64_t bytes);
    // While a Batch exists, push() only queues; its end sends in order. So the first frame on the
    // wire is the most urgent one of the batch, not the first pushed.
    class Batch {
     public:
      explicit Batch(Port& port) : port_(port), was_pumping_(std::exchange(port.pumping_, true)) {}
      ~Batch() {
        port_.pumping_ = was_pumping_;
        port_.pump();
      }
      Batch(const Batch&) = delete;
      Batch& operator=(const Batch&) = delete;

     private:
      Port& port_;
      const bool was_pumping_;
    };
    // Hands over everything that is queued, regardless of credit.
    void flush();
    // The connection accepts no more: drops what is queued. The port may be used again.
    void close();

   private:
    struct Entry {
      int32_t priority;
      uint64_t sequence;
      uint64_t bytes;
      Send send;
      bool operator<(const Entry& other) const {
        if (priority != other.priority) return priority < other.priority;
        return sequence > other.sequence;
      }
    };

    // Sends while the credit and the turns allow it: the next one fits, or nothing is outstanding.
    void pump();
    bool waits_its_turn(int32_t priority) const;
    bool has_unwritten(int32_t least_priority) const;
    void let_answers_go();
    Port*& registered() const;
    void send_first();
    void count_contributions(uint64_t bytes);

    Outbox& outbox_;
    const Kind kind_;
    Turns* turns_ = nullptr;   // null: it takes none
    std::vector<Entry> heap_;  // a heap: the first in order is in front
    uint64_t outstanding_bytes_ = 0;
    int32_t last_priority_ = 0;  // of what has been handed over
    uint64_t next_sequence_ = 0;
    uint64_t contribution_bytes_ = 0;  // see Outbox::has_contributed()
    bool pumping_ = false;             // send() may push, or report bytes as sent immediately
  };

  // Sets the credit of each port, effective at the port's next event.
  void set_credit(uint64_t credit_bytes) { credit_bytes_ = credit_bytes; }
  uint64_t credit_bytes() const { return credit_bytes_; }
  // True if there were contributions, and those of all ports have been written or dropped.
  bool has_contributed() const { return contributed_ && contribution_bytes_ == 0; }
  // The burst budget that the pacers of the ports' connections share.
  Burst& burst() { return burst_; }

 private:
  uint64_t credit_bytes_;
  uint64_t contribution_bytes_ = 0;  // sum over all ports
  bool contributed_ = false;
  Burst burst_{kThreadBurstBytes};
  std::map<Peer, Turns> turns_;
};

}  // namespace byteps::protocol
