#include "node/traffic_reporter.h"

namespace byteps::node {
namespace {

constexpr int kQuietIntervals = 3;

// A connection may have been replaced.
uint64_t growth(uint64_t from, uint64_t to) { return to < from ? 0 : to - from; }

}  // namespace

TrafficReporter::TrafficReporter(transport::EventLoop& control, std::vector<transport::EventLoop*> loops,
                                 TimeUs interval_us, Callbacks callbacks)
    : control_(control),
      loops_(std::move(loops)),
      interval_us_(interval_us),
      callbacks_(std::move(callbacks)) {}

void TrafficReporter::wake() {
  if (!sleeps_ || stopped_) return;
  sleeps_ = false;
  read_all();
}

void TrafficReporter::stop() {
  stopped_ = true;
  if (timer_ != 0) control_.cancel(std::exchange(timer_, 0));
}

void TrafficReporter::read_all() {
  timer_ = 0;
  sums_.clear();
  unread_loops_ = loops_.size();
  for (size_t i = 0; i < loops_.size(); ++i) {
    loops_[i]->post([this, i] {
      std::vector<protocol::Flow> flows;
      callbacks_.read(i, flows);
      control_.post([this, flows = std::move(flows)] { on_read(flows); });
    });
  }
}

void TrafficReporter::on_read(const std::vector<protocol::Flow>& flows) {
  for (const protocol::Flow& flow : flows) {
    auto& [bytes, busy_us] = sums_[{flow.node, flow.answers}];
    bytes += flow.bytes;
    busy_us += flow.busy_us;
  }
  if (--unread_loops_ == 0 && !stopped_) report();
}

void TrafficReporter::report() {
  protocol::Traffic traffic;
  for (const auto& [key, sum] : sums_) {
    const Sent before = before_[key];
    const uint64_t bytes = growth(before.first, sum.first);
    const uint64_t busy_us = growth(before.second, sum.second);
    if (bytes > 0) traffic.flows.push_back({key.first, key.second, bytes, busy_us});
  }
  before_ = std::exchange(sums_, {});
  if (!traffic.flows.empty()) quiet_intervals_ = 0;
  sleeps_ = quiet_intervals_++ >= kQuietIntervals;
  if (!sleeps_) timer_ = control_.run_at(control_.now_us() + interval_us_, [this] { read_all(); });
  if (!traffic.flows.empty()) callbacks_.send(std::move(traffic));
}

}  // namespace byteps::node
