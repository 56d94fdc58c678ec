// Sites with network cards of limited speed, around a switch without limits; for jobs of up to some thousand reducer_hosts.
//
// Unlike virtual_network, which is about order and faults, this is about time. A card sends one message at a time, at
// its speed, while it receives at the same speed. What it sends next is protocol/outbox's choice: a card has one port,
// where in a job each of its connections has one. The first byte of a message arrives a latency after it was sent. What
// waits to be received takes turns by sender, as connections share a link: start-time fair queueing of whole messages
// (Goyal, Vin and Cheng, SIGCOMM 1996). A message from a slower card is complete when its last byte has come, but keeps
// the card busy only for as long as the card needs for it. What waits is unlimited: no loss, and nobody is slowed down at the source.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "protocol/outbox.h"

namespace byteps::sim {

// The network knows `from`, `to` and `bytes`.
struct ScaleMessage {
  uint32_t tensor = 0;
  uint32_t partition = 0;
  uint32_t bytes = 0;
  uint16_t from = 0;
  uint16_t to = 0;
  bool is_result = false;
};

class ScaleEvents {
 public:
  virtual ~ScaleEvents() = default;
  virtual void on_message(const ScaleMessage& message) = 0;
  virtual void on_timer(uint32_t timer) = 0;
};

struct ScaleNetworkOptions {
  std::vector<double> bytes_per_s;  // of each reducer_host's card, each way; positive
  double latency_s = 0;
  uint64_t credit_bytes = 1;
};

class ScaleNetwork {
 public:
  ScaleNetwork(const ScaleNetworkOptions& options, ScaleEvents& events);
  ScaleNetwork(const ScaleNetwork&) = delete;
  ScaleNetwork& operator=(const ScaleNetwork&) = delete;

  // To the own reducer_host: no card is passed, the message arrives now (but not during this call).
  void send(int32_t priority, const ScaleMessage& message);
  void at(double when_s, uint32_t timer);

  // Until nothing happens any more, or `keep_going`, which is asked now and then, says no: then false.
  bool run(const std::function<bool()>& keep_going);
  double now_s() const { return now_s_; }

 private:
  struct Incoming {
    double
        tag;  // bytes that the card has received when its turn comes, if all senders have something waiting
    uint64_t sequence;
    double last_byte_s;
    ScaleMessage message;
    bool operator<(const Incoming& other) const {
      return tag != other.tag ? tag > other.tag : sequence > other.sequence;
    }
  };
  struct Card {
    Card(double speed, uint64_t credit_bytes, size_t num_reducer_hosts)
        : bytes_per_s(speed), outbox(credit_bytes), last_tag_of_sender(num_reducer_hosts) {}
    double bytes_per_s;
    protocol::Outbox outbox;
    protocol::Outbox::Port port{outbox};
    double sends_until_s = 0;
    std::vector<Incoming> incoming;          // heap
    std::vector<double> last_tag_of_sender;  // by reducer_host
    double current_tag = 0;
    std::optional<Incoming> receiving;
  };
  enum class Kind : uint8_t { kTimer, kSent, kArrives, kReceived, kComplete };
  struct Event {
    double when_s;
    uint64_t sequence;  // events of the same time are in the order of their making
    ScaleMessage message;
    Kind kind;
    bool operator<(const Event& other) const {
      return when_s != other.when_s ? when_s > other.when_s : sequence > other.sequence;
    }
  };

  void schedule(double when_s, Kind kind, const ScaleMessage& message);
  void dispatch(const Event& event);
  void transmit(Card& card, const ScaleMessage& message);
  void on_first_byte(const ScaleMessage& message);
  void receive_next(Card& card);
  void on_received(Card& card);

  std::deque<Card> cards_;
  double latency_s_;
  ScaleEvents& events_;
  std::vector<Event> heap_;
  uint64_t next_sequence_ = 0;
  double now_s_ = 0;
};

}  // namespace byteps::sim
