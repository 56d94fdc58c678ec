// Tells the scheduler what this node sends to others (protocol/link_speeds.h), while it sends.
//
// Lives on the control loop; reads the connections on the data loops. A node without traffic stops
// reading after a few intervals, so that it does not wake up. Each wake() reads once, and goes on
// if there is traffic again.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "protocol/message.h"
#include "transport/event_loop.h"

namespace byteps::node {

class TrafficReporter {
 public:
  struct Callbacks {
    // On the data loop with this index: adds what each connection has sent since its start. A node
    // may have several rows.
    std::function<void(size_t loop, std::vector<protocol::Flow>& flows)> read;
    std::function<void(protocol::Traffic traffic)> send;  // on the control loop
  };
  // All arguments must outlive the loops.
  TrafficReporter(transport::EventLoop& control, std::vector<transport::EventLoop*> loops, TimeUs interval_us,
                  Callbacks callbacks);

  // All on the control loop.
  void wake();
  void stop();

 private:
  using Sent = std::pair<uint64_t, uint64_t>;  // bytes, busy time
  void read_all();
  void on_read(const std::vector<protocol::Flow>& flows);
  void report();

  transport::EventLoop& control_;
  const std::vector<transport::EventLoop*> loops_;
  const TimeUs interval_us_;
  const Callbacks callbacks_;
  transport::EventLoop::TimerId timer_ = 0;  // 0: reads the loops, or sleeps
  bool sleeps_ = true;
  bool stopped_ = false;
  size_t unread_loops_ = 0;
  int quiet_intervals_ = 0;
  std::map<std::pair<uint32_t, bool>, Sent> sums_;    // of the loops that have been read
  std::map<std::pair<uint32_t, bool>, Sent> before_;  // sums of the previous reading
};

}  // namespace byteps::node
