// What goes to a connection next: by priority, within a credit. Pure.
//
// Credit bounds the bytes handed to a connection and not yet on the wire: an urgent partition waits for at most that
// much of less urgent ones, or for one of them where that is larger, whatever comes after it. Credit comes back when bytes are written, never later: waiting for a round to end could deadlock
// workers whose tensors become ready in different orders. Connections do not wait for each other: where one is slow,
// others would stand still with it, and the next moment another one would be the slow one (measured: twice the time).
// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration"
// (ByteScheduler), SOSP 2019, section 4.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/unique_function.h"
#include "protocol/pacing.h"

namespace byteps::protocol {

// The credit of the connections of one loop; each of them has a Port.
class Outbox {
 public:
  // Of equal priority, answers go first: each frees a round that all wait for.
  enum class Kind : uint8_t { kContribution, kAnswer };
  // Hands the bytes to their connection, which says when they are written (Port::sent).
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

    // `send` is called, now or later, unless close() comes first: larger `priority` first, then by kind, then in the
    // order of pushing. The first in order is never overtaken by one that would fit.
    void push(int32_t priority, Kind kind, uint64_t bytes, Send send);
    // `bytes` that were handed over are written. Late reports, after a close(), count no more.
    void sent(uint64_t bytes);
    // What is pushed while one exists is put in order before the first of it is handed over: what leaves at once is the
    // most urgent, not what was pushed first.
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
    // Hands over all that was pushed, whatever the credit.
    void flush();
    // The connection takes no more: what was pushed is dropped. May be used again after that.
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
    std::vector<Entry> heap_;  // the first in order in front
    uint64_t outstanding_bytes_ = 0;
    uint64_t next_sequence_ = 0;
    uint64_t contribution_bytes_ = 0;  // see Outbox::has_contributed()
    bool pumping_ = false;             // send() may push, or report as sent at once
  };

  // Of each port, from its next event on.
  void set_credit(uint64_t credit_bytes) { credit_bytes_ = credit_bytes; }
  uint64_t credit_bytes() const { return credit_bytes_; }
  // There were contributions, and those of all ports are written or were closed away. (Of a port that carries answers,
  // too, each byte that is written counts as one of theirs.)
  bool has_contributed() const { return contributed_ && contribution_bytes_ == 0; }
  // For the pacers of the ports' connections.
  Burst& burst() { return burst_; }

 private:
  uint64_t credit_bytes_;
  uint64_t contribution_bytes_ = 0;  // of all ports
  bool contributed_ = false;
  Burst burst_;
};

}  // namespace byteps::protocol
