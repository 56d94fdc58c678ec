// The network between simulated processes: who listens where, how long a frame takes, and what breaks.
//
// Frames of different connections arrive in any order, those of one in theirs (sim/endpoint.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "sim/endpoint.h"
#include "sim/memory.h"
#include "sim/random.h"
#include "sim/virtual_clock.h"
#include "sim/virtual_process.h"

namespace byteps::sim {

struct NetworkOptions {
  TimeUs min_latency_us = 20;
  TimeUs max_latency_us = 500;
  double straggler_chance = 0.02;    // of a frame that takes ten times as long
  uint64_t bytes_per_ms = 0;         // of a process' outgoing traffic, all connections together; 0: unlimited
  uint64_t window_bytes = 64 << 10;  // of a connection, each way
  uint64_t arena_bytes = 64 << 10;   // of a connection that shares memory
};

using AcceptCallback = UniqueFunction<void(Endpoint&)>;
using ConnectCallback = UniqueFunction<void(Result<Endpoint*>)>;

class VirtualNetwork {
 public:
  VirtualNetwork(VirtualClock& clock, Random& random, Findings& findings, const NetworkOptions& options)
      : clock_(clock), random_(random), findings_(findings), options_(options) {}
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  void listen(VirtualProcess& process, const std::string& address, AcceptCallback on_accept);
  // Tries again while nobody listens, until `deadline_us`. The end lives as long as the network.
  void connect(VirtualProcess& process, const std::string& address, TimeUs deadline_us,
               ConnectCallback on_done, Carriage carriage = Carriage::kCopy);
  // A connection inside one process; payloads are lent.
  std::pair<Endpoint*, Endpoint*> make_local_pair(VirtualProcess& process);

  // `process` is gone: its connections end abruptly, nobody listens there any more.
  void on_process_gone(VirtualProcess& process);
  // Breaks one of the connections between two processes and returns them; null if there is none.
  std::pair<const VirtualProcess*, const VirtualProcess*> cut_one();
  // Likewise, but neither end is told.
  std::pair<const VirtualProcess*, const VirtualProcess*> silence_one();

 private:
  friend class Endpoint;
  Endpoint* pick_connection(bool for_silence);
  struct Listener {
    VirtualProcess* process;
    AcceptCallback on_accept;
  };
  struct Attempt {
    VirtualProcess* process;
    std::string address;
    TimeUs deadline_us;
    ConnectCallback on_done;
    Carriage carriage;
    bool over = false;
  };

  std::pair<Endpoint*, Endpoint*> make_pair(VirtualProcess& first, VirtualProcess& second, Carriage carriage);
  void try_connect(const std::shared_ptr<Attempt>& attempt);
  void accept(Listener& listener, const std::shared_ptr<Attempt>& attempt);
  TimeUs latency_us();
  TimeUs departure_us(const VirtualProcess& process, uint64_t bytes);

  VirtualClock& clock_;
  Random& random_;
  Findings& findings_;
  NetworkOptions options_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::map<std::string, Listener> listeners_;
  std::map<const VirtualProcess*, TimeUs> busy_until_us_;  // outgoing side; looked up, never iterated
};

}  // namespace byteps::sim
