// The network of a simulated cluster: hosts, the paths between them, and connections that carry bytes in order.
//
// A path has a delay, and each host a rate at which bytes leave it, which its connections share. A path may be cut, in
// one direction or both: then bytes on it wait, and arrive when it is whole again, as TCP would send them again. What is
// like TCP: a connection takes at most a window of bytes that the other end has not read, so a slow reader stops the
// sender; bytes are copied when they leave; what left before an orderly close arrives before the close.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "sim/virtual_time.h"
#include "transport/transport.h"

namespace byteps::sim {

class SimListener;

struct NetworkOptions {
  TimeUs min_delay_us = 20;  // one way, drawn for each chunk
  TimeUs max_delay_us = 200;
  uint64_t bytes_per_s = 1'000'000'000;  // of each host; 0: no limit
  size_t window_bytes = 256 << 10;
  size_t chunk_bytes = 16 << 10;
};

class SimNetwork {
 public:
  SimNetwork(VirtualTime& time, const NetworkOptions& options)
      : time_(time), options_(options), loop_(time.make_loop("network")) {}

  VirtualTime& time() { return time_; }
  const NetworkOptions& options() const { return options_; }

  // Bytes from `from` to `to` wait until restore().
  void cut(const std::string& from, const std::string& to);
  void restore(const std::string& from, const std::string& to);
  // Since when bytes from one to the other do not arrive; kNever: they do.
  TimeUs cut_since_us(const std::string& from, const std::string& to) const;

  // When `bytes` that leave `from` now arrive at `to`. They occupy the card of `from` for their time.
  TimeUs arrival_us(const std::string& from, const std::string& to, size_t bytes);

  // Listeners by address text. kUnavailable: the port is taken. Port 0: one that is free.
  Result<transport::Address> bind(const transport::Address& address, SimListener& listener);
  void unbind(const transport::Address& address);
  SimListener* listener_at(const transport::Address& address);

  // What the hosts' kernels and the network do happens on this loop.
  VirtualLoop& loop() { return *loop_; }

 private:
  VirtualTime& time_;
  const NetworkOptions options_;
  const std::unique_ptr<VirtualLoop> loop_;
  std::map<std::string, SimListener*> listeners_;
  uint16_t last_port_ = 30'000;
  std::map<std::string, TimeUs> card_free_us_;
  std::map<std::pair<std::string, std::string>, TimeUs> cuts_;
};

}  // namespace byteps::sim
