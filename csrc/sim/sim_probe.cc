#include "sim/sim_probe.h"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/nic_probe.h"
#include "sim/sim_link.h"

namespace byteps::sim {

using protocol::DataHead;
using protocol::DataType;

constexpr size_t kFrameBytes = 1024;

Frame SimProbe::make_probe() {
  DataHead head;
  head.type = DataType::kProbe;
  head.epoch = epoch_;
  head.bytes = kFrameBytes;
  const std::array<std::byte, kFrameBytes> payload{};
  return make_frame(head, make_view(world_, process_, payload));
}

void SimProbe::listen(const std::string& address) {
  world_.network.listen(process_, address, [this](Endpoint& endpoint) {
    if (stopped_) return endpoint.close();
    endpoints_.push_back(&endpoint);
    endpoint.start(this);
  });
}

void SimProbe::measure(const protocol::ProbeStart& start, Done done) {
  round_ = start.round;
  start_us_ = world_.clock.now();
  answered_bytes_ = 0;
  pending_ = start.helpers.size();
  done_ = std::move(done);
  const TimeUs deadline_us = protocol::ProbeMeter(start_us_).deadline_us();
  process_.at(deadline_us, [this, round = round_] {
    if (round == round_) finish();
  });
  for (const protocol::ProbeHelper& helper : start.helpers) {
    world_.network.connect(
        process_, helper.addresses.front(), deadline_us,
        [this, round = round_](Result<Endpoint*> endpoint) { on_connected(round, std::move(endpoint)); });
  }
}

void SimProbe::on_connected(uint32_t round, Result<Endpoint*> endpoint) {
  if (stopped_ || round != round_ || !done_) {
    if (endpoint) (*endpoint)->close();
    return;
  }
  if (!endpoint) return on_flow_ended();
  endpoints_.push_back(*endpoint);
  flows_.push_back(*endpoint);
  (*endpoint)->start(this);
  (*endpoint)->send(make_probe(), nullptr);
}

void SimProbe::on_frame(Endpoint& endpoint, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (!head || head->type != DataType::kProbe || head->epoch != epoch_ || head->bytes != frame.payload.size) {
    return world_.report(process_, "a frame came that is no probe of this job");
  }
  if (std::ranges::find(flows_, &endpoint) == flows_.end()) return endpoint.send(make_probe(), nullptr);
  answered_bytes_ += frame.payload.size;
  on_flow_ended();
}

void SimProbe::on_closed(Endpoint& endpoint, const Status&) {
  std::erase(endpoints_, &endpoint);
  if (std::erase(flows_, &endpoint) > 0) on_flow_ended();
}

void SimProbe::on_flow_ended() {
  if (--pending_ == 0) finish();
}

void SimProbe::finish() {
  if (!done_) return;
  for (Endpoint* flow : std::exchange(flows_, {})) {
    std::erase(endpoints_, flow);
    flow->close();
  }
  const auto elapsed_us = static_cast<uint64_t>(std::max<TimeUs>(1, world_.clock.now() - start_us_));
  std::exchange(done_, nullptr)({round_, answered_bytes_ * 1'000'000 / elapsed_us});
}

void SimProbe::stop() {
  stopped_ = true;
  done_ = nullptr;
  flows_.clear();
  for (Endpoint* endpoint : std::exchange(endpoints_, {})) endpoint->close();
}

}  // namespace byteps::sim
