// The order in which frames are handed to a connection: by priority, within a credit. Pure.
//
// Credit bounds the bytes handed to a connection that are not on the wire yet. So an urgent
// partition waits for at most that many bytes of less urgent ones, or for one larger partition.
// Credit returns when bytes are written, not when a round ends: that could deadlock workers whose
// tensors become ready in different orders. Each connection has its own credit: with a common one a
// slow connection would hold up the others (measured: twice the time).
//
// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training
// Acceleration" (ByteScheduler), SOSP 2019, section 4.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/unique_function.h"
#include "protocol/pacing.h"

namespace byteps::protocol {

// The credit of the connections of one event loop; each connection has a Port. Not thread-safe.
class Outbox {
 public:
  // Answers go first at equal priority: each completes a round that others wait for.
  enum class Kind : uint8_t { kContribution, kAnswer };
  // Hands the bytes to their connection, which reports when they are written (Port::sent).
  using Send = UniqueFunction<void()>;

  // `credit_bytes`: of each port.
  explicit Outbox(uint64_t credit_bytes) : credit_bytes_(credit_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  class Port {
   public:
    explicit Port(Outbox& outbox) : outbox_(outbox) {}
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

    // `send` is called now or later, unless close() comes first. Order: larger `priority` first,
    // then `kind`, then the order of the calls. The first in order is never overtaken by a smaller
    // one.
    void push(int32_t priority, Kind kind, uint64_t bytes, Send send);
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
      Kind kind;
      uint64_t sequence;
      uint64_t bytes;
      Send send;
      bool operator<(const Entry& other) const {
        if (priority != other.priority) return priority < other.priority;
        return kind != other.kind ? kind < other.kind : sequence > other.sequence;
      }
    };

    // Sends while the credit allows it: the next one fits, or nothing is outstanding.
    void pump();
    void send_first();
    void count_contributions(uint64_t bytes);

    Outbox& outbox_;
    std::vector<Entry> heap_;  // a heap: the first in order is in front
    uint64_t outstanding_bytes_ = 0;
    uint64_t next_sequence_ = 0;
    uint64_t contribution_bytes_ = 0;  // see Outbox::has_contributed()
    bool pumping_ = false;             // send() may push, or report bytes as sent immediately
  };

  // Sets the credit of each port, effective at the port's next event.
  void set_credit(uint64_t credit_bytes) { credit_bytes_ = credit_bytes; }
  uint64_t credit_bytes() const { return credit_bytes_; }
  // True if there were contributions, and those of all ports have been written or dropped. (On a
  // port that also carries answers, written bytes of answers are counted as well.)
  bool has_contributed() const { return contributed_ && contribution_bytes_ == 0; }
  // The burst budget that the pacers of the ports' connections share.
  Burst& burst() { return burst_; }

 private:
  uint64_t credit_bytes_;
  uint64_t contribution_bytes_ = 0;  // sum over all ports
  bool contributed_ = false;
  Burst burst_{kThreadBurstBytes};
};

}  // namespace byteps::protocol
