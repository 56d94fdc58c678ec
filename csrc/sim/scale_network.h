// A network of machines with cards of limited speed around a switch without limits, for jobs of up
// to some thousand machines.
//
// A card sends one message at a time, at its speed, and receives at the same speed meanwhile.
// protocol/outbox chooses what it sends next: a card has one port here, where a real process has
// one per connection. The first byte of a message arrives one latency after it was sent. Messages
// that wait to be received take turns by sender, as connections share a link: start-time fair
// queueing of whole messages (Goyal, Vin and Cheng, SIGCOMM 1996). A message from a slower card is
// complete when its last byte has arrived, but occupies the receiving card only as long as one from
// an equal card would. Queues are unlimited: nothing is lost, and no sender is slowed down.
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
  std::vector<double> bytes_per_s;  // by machine: speed of its card in each direction; positive
  double latency_s = 0;
  uint64_t credit_bytes = 1;
};

class ScaleNetwork {
 public:
  ScaleNetwork(const ScaleNetworkOptions& options, ScaleEvents& events);
  ScaleNetwork(const ScaleNetwork&) = delete;
  ScaleNetwork& operator=(const ScaleNetwork&) = delete;

  // A message to its own machine uses no card and arrives now, but not during this call.
  void send(int32_t priority, const ScaleMessage& message);
  void at(double when_s, uint32_t timer) { schedule(when_s, Kind::kTimer, {.tensor = timer}); }

  // Runs until there are no more events. Returns false if `keep_going`, which is called at times,
  // returned false.
  bool run(const std::function<bool()>& keep_going);
  double now_s() const { return now_s_; }

 private:
  // A heap has its largest element first, so the order is reversed: the smallest `at` comes first,
  // equal ones in the order of their making.
  struct Turn {
    double at;
    uint64_t sequence;
    bool operator<(const Turn& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };
  // `at`: bytes that the card has received when its turn comes, if messages of all senders wait.
  struct Incoming : Turn {
    double last_byte_s;
    ScaleMessage message;
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
  struct Event : Turn {  // `at`: seconds
    ScaleMessage message;
    Kind kind;
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
