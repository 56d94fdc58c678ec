// The network of a simulated cluster: hosts, the paths between them, and connections that carry
// bytes in order.
//
// A path has a delay. The connections of a host share the rate at which bytes leave it, and, if the
// rate has changed since the start, the same one at which bytes come. A path may
// be cut in one direction or both: its bytes arrive after it is restored, as TCP would send them
// again. As in TCP, sent bytes are copied, a connection has at most a window of unread bytes in
// flight, and bytes sent before an orderly close arrive before the close.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sim/sim_quarantine.h"
#include "sim/virtual_time.h"
#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::sim {

class SimListener;
class Wire;

struct NetworkOptions {
  TimeUs min_delay_us = 20;  // in one direction, drawn for each chunk
  TimeUs max_delay_us = 200;
  uint64_t bytes_per_s = 1'000'000'000;  // rate of each host; 0: unlimited
  size_t window_bytes = 256 << 10;
  size_t chunk_bytes = 16 << 10;
  // TCP has to send a byte of so many again. Where paths are long, this makes a difference
  // (protocol/nic_survey.h).
  uint64_t bytes_of_loss = 2000;
  double slow_handshake_chance = 0;  // of a connect() to be answered late
  TimeUs max_handshake_us = 0;       // the delay of a late answer is drawn up to this
};

class SimNetwork {
 public:
  SimNetwork(VirtualTime& time, const NetworkOptions& options)
      : time_(time), options_(options), quarantine_(violations_), loop_(time.make_loop("network")) {}

  VirtualTime& time() { return time_; }
  const NetworkOptions& options() const { return options_; }

  // Bytes from `from` to `to` wait until restore().
  void cut(const std::string& from, const std::string& to) { cuts_.try_emplace({from, to}, time_.now_us()); }
  void restore(const std::string& from, const std::string& to) { cuts_.erase({from, to}); }
  // The card of a host has another rate from now on, in both directions.
  void set_rate(const std::string& host, uint64_t bytes_per_s) { rates_[host] = bytes_per_s; }
  // kNever: not cut.
  TimeUs cut_since_us(const std::string& from, const std::string& to) const;

  struct Reset {
    std::pair<std::string, std::string> hosts;  // their addresses
    bool is_resumed;                            // SimTransportOptions::is_resumed
  };
  // Resets a random connection between two hosts, as a firewall does. Nullopt: there is none.
  std::optional<Reset> reset_one();
  // Registers a connection for reset_one().
  void add(const std::shared_ptr<Wire>& wire) { wires_.push_back(wire); }

  // When `host` sends something to another host the next time, `task` runs on the network's loop,
  // unless the run ends before.
  void at_next_send(const std::string& host, transport::EventLoop::Task task) {
    at_next_send_[host].push_back(std::move(task));
  }

  // Time at which `bytes` that `from` sends now arrive at `to`. Occupies their cards.
  TimeUs arrival_us(const std::string& from, const std::string& to, size_t bytes);

  // Registers a listener by its address. kUnavailable: the port is taken. Port 0: a free one.
  Result<transport::Address> bind(const transport::Address& address, SimListener& listener);
  void unbind(const transport::Address& address) { listeners_.erase(address.to_string()); }
  SimListener* listener_at(const transport::Address& address);
  // Of all listeners of a host.
  std::vector<transport::Address> listeners_of(const std::string& ip) const;

  // Time that the handshake of a new connection takes.
  TimeUs handshake_us();

  // Any thread, all three. A user of the transports has broken the rules of transport.h.
  void report(std::string violation);
  // Keeps memory of a returned lease, so that later writes to it are reported.
  void quarantine(std::string name, LentBlock block);
  // All violations until now, with those of the quarantined memory.
  std::vector<std::string> violations();

  // The loop of the hosts' kernels and the network.
  VirtualLoop& loop() { return *loop_; }

 private:
  VirtualTime& time_;
  const NetworkOptions options_;
  std::vector<std::string> violations_;
  Quarantine quarantine_;
  std::map<std::string, SimListener*> listeners_;
  uint16_t last_port_ = 30'000;
  std::vector<std::weak_ptr<Wire>> wires_;  // in the order of their creation
  // A direction of a host's card is free at this time.
  using FreeUs = std::map<std::string, TimeUs>;
  TimeUs occupy(FreeUs& cards, const std::string& host, TimeUs now, size_t bytes) const;

  FreeUs out_free_us_;
  FreeUs in_free_us_;
  std::map<std::string, std::vector<transport::EventLoop::Task>> at_next_send_;
  std::map<std::string, uint64_t> rates_;  // of hosts whose rate has changed
  std::map<std::pair<std::string, std::string>, TimeUs> cuts_;
  const std::unique_ptr<VirtualLoop> loop_;  // destroyed first: its tasks own connections
};

struct SimTransportOptions {
  std::string ip;                      // address of this host
  transport::Credentials credentials;  // peers with others are refused, as in the real handshake
  // Bytes of memory that connect() leases to the other end, as ShmOptions::arena_bytes; 0: none.
  // The same at both ends.
  size_t arena_bytes = 0;
  // Its connections carry those of transport/resume, which survive a reset.
  bool is_resumed = false;
};

// The transport of one process: like TCP, or like shared memory between processes of one machine.
// It reports uses that break the rules of transport.h. `network` must outlive it and its
// connections.
std::unique_ptr<transport::Transport> make_sim_transport(SimNetwork& network, SimTransportOptions options);

}  // namespace byteps::sim
