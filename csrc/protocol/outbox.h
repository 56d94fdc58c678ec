// What leaves a process next: all connections of one loop share one order and one credit. Pure.
//
// Credit bounds the bytes handed to transports and not yet on the wire, over all connections together, for two
// reasons. What is urgent waits for at most that much of others. And the connections stay in step: bytes for a slow one
// use up the credit, so that the fast ones wait for it instead of running ahead. A push_pull ends with its slowest
// connection, so every byte that another one was ahead is bandwidth that nobody uses at the end.
// Credit comes back when bytes are written, never later: waiting for a round to end could deadlock workers whose
// tensors become ready in different orders.
//
// Order: larger priority first; of equal ones answers before contributions (each answer frees a round that all wait
// for), then in the order of pushing.
// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration"
// (ByteScheduler), SOSP 2019, section 4, for priority and credit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/unique_function.h"

namespace byteps::protocol {

class Outbox {
 public:
  enum class Kind : uint8_t { kContribution, kAnswer };
  // Hands the bytes to their connection, which says when they are written (Port::sent).
  using Send = UniqueFunction<void()>;

  explicit Outbox(uint64_t credit_bytes) : credit_bytes_(credit_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // One connection's part. Not after the outbox.
  class Port {
   public:
    explicit Port(Outbox& outbox) : outbox_(outbox) {}
    ~Port() { close(); }
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

    // `send` is called, now or later, unless close() comes first.
    void push(int32_t priority, Kind kind, uint64_t bytes, Send send);
    // `bytes` that were handed over are written. Late reports, after a close(), count no more.
    void sent(uint64_t bytes);
    // Hands over all that was pushed, whatever the credit.
    void flush();
    // The connection takes no more: what was pushed is dropped, its credit goes back. May be used again after that.
    void close();

   private:
    friend class Outbox;
    Outbox& outbox_;
    uint64_t outstanding_bytes_ = 0;
  };

  void set_credit(uint64_t credit_bytes);
  uint64_t outstanding_bytes() const { return outstanding_bytes_; }

 private:
  struct Entry {
    int32_t priority;
    Kind kind;
    uint64_t sequence;
    uint64_t bytes;
    Port* port;
    Send send;
    bool operator<(const Entry& other) const {
      if (priority != other.priority) return priority < other.priority;
      return kind != other.kind ? kind < other.kind : sequence > other.sequence;
    }
  };

  // Sends while the credit allows it: the next one fits, or nothing is outstanding. The first in order is never
  // overtaken by one that would fit.
  void pump();
  void hand_over(Entry entry);

  std::vector<Entry> heap_;  // the first in order in front
  uint64_t credit_bytes_;
  uint64_t outstanding_bytes_ = 0;
  uint64_t next_sequence_ = 0;
  bool pumping_ = false;  // send() may push, or report as sent at once
};

}  // namespace byteps::protocol
