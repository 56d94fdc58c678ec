#include "node/nic_probe.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "node/probe_connection.h"
#include "protocol/text.h"

namespace byteps::node {

// The state of one loop; all members are used on its thread.
struct NicProbe::LoopState {
  explicit LoopState(transport::EventLoop& own_loop) : loop(own_loop) {}

  void adopt(std::unique_ptr<transport::Connection> connection, uint32_t epoch) {
    echoes.push_back(std::make_unique<ProbeEcho>(std::move(connection), epoch,
                                                 [this](const ProbeEcho& echo) { remove(echo); }));
    echoes.back()->start();
  }
  void remove(const ProbeEcho& echo) {
    const auto found = std::ranges::find_if(echoes, [&](const auto& each) { return each.get() == &echo; });
    // Destroyed later, because it is the caller.
    loop.post([doomed = std::move(*found)] {});
    echoes.erase(found);
  }
  void stop() {
    listener.reset();
    echoes.clear();
    if (run) run->stop();
    run.reset();
  }

  transport::EventLoop& loop;
  std::unique_ptr<transport::Listener> listener;
  std::vector<std::unique_ptr<ProbeEcho>> echoes;
  std::shared_ptr<ProbeRun> run;  // the current or last one
};

NicProbe::NicProbe(transport::Transport& tcp, transport::EventLoop& control,
                   const std::vector<transport::EventLoop*>& loops, uint32_t epoch)
    : tcp_(tcp), control_(control), epoch_(epoch) {
  for (transport::EventLoop* loop : loops) loop_states_.push_back(std::make_shared<LoopState>(*loop));
}

NicProbe::~NicProbe() = default;

Result<std::vector<std::string>> NicProbe::listen(const std::string& ip) {
  std::vector<std::string> addresses;
  for (const auto& state : loop_states_) {
    Status status;
    state->loop.run_and_wait([&] {
      auto listener =
          tcp_.listen(state->loop, {ip, 0}, [state = state.get(), epoch = epoch_](auto connection) {
            state->adopt(std::move(connection), epoch);
          });
      status = listener.status();
      if (!status.is_ok()) return;
      addresses.push_back((*listener)->address().to_string());
      state->listener = std::move(*listener);
    });
    if (!status.is_ok()) return status.with_context("probe of the network card cannot listen");
  }
  return addresses;
}

void NicProbe::measure(const protocol::ProbeStart& start, Done done) {
  round_ = start.round;
  const size_t num_runs = std::min<size_t>(loop_states_.size(), start.connections);
  runs_left_ = num_runs;
  measured_ = {};
  done_ = std::move(done);
  for (size_t i = 0; i < num_runs; ++i) {
    std::vector<transport::Address> helpers;
    for (size_t connection = i; connection < start.connections; connection += num_runs) {
      for (const protocol::ProbeHelper& helper : start.helpers) {
        if (helper.addresses.empty()) continue;
        const auto address = transport::parse_address(helper.addresses[connection % helper.addresses.size()]);
        if (address) helpers.push_back(*address);
      }
    }
    loop_states_[i]->loop.post([this, state = loop_states_[i], helpers = std::move(helpers)] {
      state->run = std::make_shared<ProbeRun>(state->loop, tcp_, epoch_);
      state->run->start(helpers, [this](const protocol::CardMeasurement& of_run) {
        control_.post([this, of_run] { on_run_done(of_run); });
      });
    });
  }
}

void NicProbe::on_run_done(const protocol::CardMeasurement& of_run) {
  measured_.bytes_per_s += of_run.bytes_per_s;
  measured_.rtt_us = std::max(measured_.rtt_us, of_run.rtt_us);
  measured_.loss = std::max(measured_.loss, of_run.loss);
  if (--runs_left_ > 0 || !done_) return;
  for (const auto& state : loop_states_) {
    state->loop.post([state] {
      if (state->run) state->run->stop();
    });
  }
  BPS_LOG(kDebug) << "network card: " << measured_.bytes_per_s
                  << " bytes/s of payload each way, round trip of " << measured_.rtt_us << " us, part lost "
                  << measured_.loss;
  const double most = static_cast<double>(protocol::kMaxNicBytesPerS);
  std::exchange(done_, nullptr)({.round = round_,
                                 .bytes_per_s = static_cast<uint64_t>(std::min(measured_.bytes_per_s, most)),
                                 .rtt_us = static_cast<uint64_t>(measured_.rtt_us),
                                 .resent_ppm = static_cast<uint32_t>(std::min(measured_.loss, 1.0) * 1e6)});
}

void NicProbe::stop() {
  done_ = nullptr;
  for (const auto& state : loop_states_) state->loop.post([state] { state->stop(); });
}

std::string describe_cards(const std::vector<protocol::NodeInfo>& nodes) {
  std::map<std::pair<uint32_t, size_t>, std::set<std::string>> hosts_of_card;
  for (const protocol::NodeInfo& node : nodes) {
    const size_t connections = node.num_shards() > node.num_threads ? node.num_shards() : 0;
    hosts_of_card[{node.nic_mbps, connections}].insert(node.host);
  }
  std::vector<std::string> texts;
  for (const auto& [card, hosts] : hosts_of_card) {
    const auto& [mbps, connections] = card;
    texts.push_back((mbps > 0 ? std::to_string(mbps) + " Mbit/s" : "unknown") +
                    (connections > 0 ? " with " + std::to_string(connections) + " connections: " : ": ") +
                    protocol::enumerate({hosts.begin(), hosts.end()}));
  }
  return protocol::enumerate(texts);
}

}  // namespace byteps::node
