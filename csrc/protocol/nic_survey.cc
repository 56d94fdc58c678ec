#include "protocol/nic_survey.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "protocol/pacing.h"

namespace byteps::protocol {
namespace {

constexpr size_t kGroup = 4;
// Several connections have to be so much faster than one: they carry small tensors less evenly.
constexpr double kLeastGain = 1.4;
constexpr uint32_t kLossyPpm = 2000;
// Longer than within a site.
constexpr TimeUs kFarUs = 2'000;

}  // namespace

NicSurvey::NicSurvey(const std::vector<NodeInfo>& nodes, uint32_t num_workers, TimeUs long_path_us)
    : long_path_us_(long_path_us) {
  std::map<std::string, uint32_t> card_of_machine;
  for (uint32_t node = 0; node < nodes.size(); ++node) {
    const auto [found, is_new] =
        card_of_machine.try_emplace(nodes[node].machine, static_cast<uint32_t>(cards_.size()));
    if (is_new) {
      cards_.push_back({.node = node,
                        .num_threads = nodes[node].num_threads,
                        .num_shards = static_cast<uint32_t>(nodes[node].num_shards()),
                        .addresses = {}});
      if (node > 0 && node < num_workers) spans_machines_ = true;
    }
    card_of_node_.push_back(found->second);
    if (nodes[node].nic_mbps == 0) cards_[found->second].known = false;
  }
}

bool NicSurvey::is_needed() const { return spans_machines_ && !std::ranges::all_of(cards_, &Card::known); }

// Card c is member c / num_groups() of group c % num_groups().
size_t NicSurvey::num_groups() const { return std::max<size_t>(1, cards_.size() / kGroup); }

void NicSurvey::start(uint32_t epoch, TimeUs grace_us, TimeUs deadline_us, TimeUs now, Orders& orders) {
  grace_us_ = grace_us;
  deadline_us_ = deadline_us;
  begin_step(now);
  for (const Card& card : cards_) {
    awaited_.insert(card.node);
    orders.push_back({card.node, ProbeSetup{epoch}});
  }
}

void NicSurvey::begin_step(TimeUs now) { step_deadline_us_ = std::min(now + grace_us_, deadline_us_); }

void NicSurvey::on_ready(uint32_t node, const ProbeReady& ready, TimeUs now, Orders& orders) {
  if (over_ || next_round_ > 0 || awaited_.erase(node) == 0) return;
  over_ = ready.addresses.empty();
  cards_[card_of_node_[node]].addresses = ready.addresses;
  if (awaited_.empty()) begin_round(now, orders);
}

void NicSurvey::on_done(uint32_t node, const ProbeDone& done, TimeUs now, Orders& orders) {
  if (over_ || done.round != next_round_ || awaited_.erase(node) == 0) return;
  Card& card = cards_[card_of_node_[node]];
  const double mbps = nic_mbps_of_payload(static_cast<double>(done.bytes_per_s));
  const bool is_first = !std::exchange(card.is_measured, true);
  if (card.connections == 1) card.mbps_of_one = std::max(card.mbps_of_one, mbps);
  if (card.connections > card.num_threads) card.mbps_of_all = mbps;
  card.mbps = std::max(card.mbps, mbps);
  if (done.resent_ppm > kLossyPpm) loses_ = true;
  round_trip_us_ = std::max(round_trip_us_, static_cast<TimeUs>(done.rtt_us));
  uint32_t again = is_first ? second_connections(card, done) : 0;
  // One connection may have lost more than its part by chance.
  if (card.connections > 1 && card.gains_by_all()) again = 1;
  if (again > 0) {
    card.connections = again;
    begin_step(now);
    awaited_.insert(node);
    orders.push_back({node, order_for(card_of_node_[node])});
  }
  if (awaited_.empty()) begin_round(now, orders);
}

uint32_t NicSurvey::second_connections(const Card& card, const ProbeDone& first) const {
  if (card.mbps == 0) return 1;
  const uint32_t all = std::max(card.num_shards, card.num_threads);
  const bool is_long = static_cast<TimeUs>(first.rtt_us) >= long_path_us_;
  if (is_long && first.resent_ppm > 0 && all > 1) return all;
  // One connection is slower than the card if its thread is the limit.
  return useful_shards(2 * card.mbps) > 1 && card.num_threads > 1 ? card.num_threads : 0;
}

bool NicSurvey::Card::gains_by_all() const {
  return mbps_of_all > 0 && mbps_of_all >= kLeastGain * mbps_of_one;
}

// Between two machines there is one path, which both have measured, and turns need as many
// connections at both.
bool NicSurvey::needs_all_shards(const Card& card) const {
  return cards_.size() == 2 ? std::ranges::all_of(cards_, &Card::gains_by_all) : card.gains_by_all();
}

bool NicSurvey::suits_turns() const { return loses_ || round_trip_us_ >= kFarUs; }

void NicSurvey::begin_round(TimeUs now, Orders& orders) {
  begin_step(now);
  while (!over_ && awaited_.empty()) {
    const size_t first = next_round_++ * num_groups();
    over_ = first >= cards_.size();
    for (size_t hub = first; hub < std::min(first + num_groups(), cards_.size()); ++hub) {
      if (cards_[hub].known) continue;
      awaited_.insert(cards_[hub].node);
      orders.push_back({cards_[hub].node, order_for(hub)});
    }
  }
}

ProbeStart NicSurvey::order_for(size_t hub) const {
  ProbeStart order{.round = next_round_, .connections = cards_[hub].connections, .helpers = {}};
  for (size_t card = hub % num_groups(); card < cards_.size(); card += num_groups()) {
    if (card != hub) order.helpers.push_back({cards_[card].addresses});
  }
  return order;
}

void NicSurvey::on_tick(TimeUs now) {
  if (now >= step_deadline_us_) over_ = true;
}

void NicSurvey::apply(std::vector<NodeInfo>& nodes, bool fit_shards) const {
  std::vector<double> speeds;
  for (const Card& card : cards_) speeds.push_back(card.mbps);
  speeds = even_out(speeds, noise());
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeInfo& node = nodes[i];
    const Card& card = cards_[card_of_node_[i]];
    size_t most_shards = node.num_threads;
    if (node.nic_mbps == 0) {
      node.nic_mbps = static_cast<uint32_t>(std::lround(speeds[card_of_node_[i]]));
      if (fit_shards && node.nic_mbps > 0)
        most_shards = std::min<size_t>(most_shards, useful_shards(node.nic_mbps));
      if (needs_all_shards(card)) most_shards = node.num_shards();
    }
    for (Endpoint& endpoint : node.endpoints)
      endpoint.addresses.resize(std::min(endpoint.addresses.size(), most_shards));
  }
}

std::vector<double> even_out(const std::vector<double>& speeds, double noise) {
  std::vector<size_t> order(speeds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return speeds[i]; });
  std::vector<double> even = speeds;
  for (size_t first = 0; first < order.size();) {
    const double most = speeds[order[first]] * noise;
    size_t last = first;
    while (last + 1 < order.size() && speeds[order[last + 1]] <= most) ++last;
    for (size_t i = first; i <= last; ++i) even[order[i]] = speeds[order[last]];
    first = last + 1;
  }
  return even;
}

}  // namespace byteps::protocol
