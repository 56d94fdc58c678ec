#include "protocol/link_speeds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "protocol/nic_survey.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// A flow that was busy for a smaller part of the window says nothing: bursts are not paced, and
// buffers hide the rest.
constexpr double kLeastBusy = 0.1;
constexpr int kSlowWindows = 3;
// What good flows have carried of their rates is forgotten in some ten windows.
constexpr double kUsualDecay = 0.9;
// Bounds what one change can get wrong.
constexpr double kLeastPart = 0.1;

constexpr double kSameSpeed = 1.1;
constexpr double kSameShare = 1e-3;
// Windows until the first try (where packets are lost, the measurement at the start is less
// exact), and after a card has become slower.
constexpr TimeUs kFirstPause = 80;
constexpr TimeUs kFirstPauseWithLosses = 10;
constexpr TimeUs kPauseOfSlow = 20;

// Each of them reports a row for each other one.
constexpr size_t kMostNodes = 256;

constexpr double kMuchFaster = 1000;         // so that another card does not matter
constexpr uint64_t kManyBytes = 1ull << 40;  // large, for precision

}  // namespace

LinkSpeeds::LinkSpeeds(std::vector<NodeInfo> nodes, uint32_t num_workers, const PlacementPolicy& policy,
                       TimeUs window_us, double noise, TimeUs now, bool takes_turns)
    : nodes_(std::move(nodes)),
      num_workers_(num_workers),
      policy_(policy),
      window_us_(window_us),
      noise_(noise),
      tree_(nodes_, num_workers) {
  if (takes_turns) tree_.let_take_turns();
  make_cards(now);
  const auto shares = reducer_host_shares(tree_.reducer_hosts(), policy_);
  if (shares) shares_ = *shares;
  const bool is_known =
      std::ranges::all_of(cards_, [](const Card& card) { return card.nodes == 0 || card.mbps > 0; });
  const bool is_fixed =
      std::ranges::all_of(cards_, [](const Card& card) { return card.nodes == 0 || card.is_fixed; });
  learns_ = window_us_ > 0 && nodes_.size() <= kMostNodes && policy_.kind == PlacementPolicy::Kind::kAuto &&
            tree_.num_machines() > 1 && is_known && !is_fixed;
  if (learns_) pace_.emplace(tree_, shares_);
}

void LinkSpeeds::make_cards(TimeUs now) {
  Card untried;
  untried.pause_us = (noise_ > kSpeedNoise ? kFirstPauseWithLosses : kFirstPause) * window_us_;
  untried.next_try_us = now + untried.pause_us;
  cards_.assign(tree_.num_reducer_hosts(), untried);
  std::vector<std::set<std::string>> hosts(cards_.size());
  std::map<std::string, uint32_t> servers;  // that live, by machine
  for (uint32_t node = num_workers_; node < nodes_.size(); ++node) {
    if (!tree_.reducer_hosts()[tree_.reducer_host_of(node)].is_lost) ++servers[nodes_[node].machine];
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    Card& card = cards_[card_of(node)];
    ++card.nodes;
    if (card_of(node) >= tree_.num_machines()) card.sharing = std::max(1u, servers[nodes_[node].machine]);
    card.is_fixed = card.is_fixed || nodes_[node].nic_is_told;
    hosts[card_of(node)].insert(nodes_[node].host);
  }
  for (size_t i = 0; i < cards_.size(); ++i) {
    cards_[i].host = enumerate({hosts[i].begin(), hosts[i].end()});
    cards_[i].mbps = tree_.reducer_hosts()[i].nic_mbps;
  }
}

uint32_t LinkSpeeds::card_of(uint32_t node) const {
  if (node < num_workers_) return tree_.machine_of(node);
  const uint32_t reducer_host = tree_.num_machines() + node - num_workers_;
  return tree_.reducer_hosts()[reducer_host].host.value_or(reducer_host);
}

Status LinkSpeeds::on_report(uint32_t node, const Traffic& traffic, TimeUs now) {
  if (next_tick_us_ == kNever) next_tick_us_ = now + window_us_;
  for (const Flow& flow : traffic.flows) {
    if (flow.node >= nodes_.size()) return data_loss("reports traffic with a node that does not exist");
    auto& [bytes, busy_us] = reported_[{{node, flow.node}, flow.answers}];
    bytes += flow.bytes;
    busy_us += flow.busy_us;
  }
  return Status::ok();
}

LinkSpeeds::Flows LinkSpeeds::end_window() {
  Flows flows;
  for (const auto& [key, reported] : std::exchange(reported_, {})) {
    const auto& [pair, answers] = key;
    const auto& [from, to] = pair;
    const auto& [bytes, busy_us] = reported;
    const Pair cards{card_of(from), card_of(to)};
    // An answer takes the connection on which its contribution came.
    const uint64_t rate = answers ? pace_->rate(to, from, tree_) : pace_->rate(from, to, tree_);
    const auto busy = static_cast<double>(busy_us);
    // A flow that carries nothing is stalled, not slow.
    if (cards.first == cards.second || rate == 0 || bytes == 0) continue;
    if (busy < kLeastBusy * static_cast<double>(window_us_)) continue;
    Carried& carried = flows[cards];
    const double due_bytes = static_cast<double>(rate) * busy * 1e-6;
    carried.bytes += std::min(static_cast<double>(bytes), due_bytes);
    carried.due_bytes += due_bytes;
  }
  return flows;
}

LinkSpeeds::Parts LinkSpeeds::parts_of(const Flows& flows) {
  std::map<uint32_t, std::pair<Carried, Carried>> directions;
  const auto add = [](Carried& total, const Carried& carried) {
    total.bytes += carried.bytes;
    total.due_bytes += carried.due_bytes;
  };
  for (const auto& [cards, carried] : flows) {
    add(directions[cards.first].first, carried);
    add(directions[cards.second].second, carried);
  }
  Parts parts;
  for (const auto& [card, both] : directions) parts[card] = std::min(both.first.part(), both.second.part());
  return parts;
}

LinkSpeeds::Parts LinkSpeeds::slow_cards(Flows flows) {
  std::vector<double> sorted;
  for (const auto& [cards, carried] : flows) sorted.push_back(carried.part());
  std::ranges::sort(sorted, std::greater());
  // The best flows but for a few, which may have been lucky. At times only slow ones are left.
  usual_part_ = std::max(sorted[(sorted.size() - 1) / 10], kUsualDecay * usual_part_);
  const double usual = usual_part_;
  const auto is_slow = [this, usual](double part) { return part < least_usual_part() * usual; };
  Parts slow;
  while (!flows.empty()) {
    const Parts parts = parts_of(flows);
    const double best = std::ranges::max_element(parts, {}, &Parts::value_type::second)->second;
    std::map<uint32_t, size_t> touched;  // number of flows
    for (const auto& [cards, carried] : flows) {
      ++touched[cards.first];
      ++touched[cards.second];
    }
    // Where all flows are uneven, for example because processors are the limit, cards are alike.
    const auto is_suspect = [&](uint32_t card) {
      const bool is_worse = parts.at(card) < least_usual_part() * best || touched[card] == flows.size();
      return !cards_[card].is_fixed && is_slow(parts.at(card)) && is_worse;
    };
    std::map<uint32_t, int> count;  // of slow flows
    int most = 0;
    for (const auto& [cards, carried] : flows) {
      if (!is_slow(carried.part())) continue;
      for (const uint32_t card : {cards.first, cards.second}) {
        if (is_suspect(card)) most = std::max(most, ++count[card]);
      }
    }
    if (most == 0) break;
    std::erase_if(count, [most](const auto& each) { return each.second < most; });
    for (const auto& [card, number] : count) slow[card] = std::max(parts.at(card) / usual, kLeastPart);
    std::erase_if(flows, [&count](const auto& each) {
      return count.contains(each.first.first) || count.contains(each.first.second);
    });
  }
  return slow;
}

std::optional<LinkSpeeds::Change> LinkSpeeds::on_tick(TimeUs now) {
  if (now < next_tick_us_) return std::nullopt;
  next_tick_us_ = reported_.empty() ? kNever : now + window_us_;
  const Flows flows = end_window();
  if (flows.empty()) return std::nullopt;
  if (settling_windows_ > 0) {
    --settling_windows_;
    return std::nullopt;
  }
  const Parts parts = parts_of(flows);
  if (try_) return go_on_trying(parts, now);
  if (auto change = learn_slower(flows, now)) return change;
  const auto is_suspect = [](const Card& card) {
    return card.slow_windows > 0 && card.slow_windows < kSlowWindows;
  };
  if (std::ranges::any_of(cards_, is_suspect)) return std::nullopt;
  return begin_try(parts, now);
}

std::optional<LinkSpeeds::Change> LinkSpeeds::learn_slower(const Flows& flows, TimeUs now) {
  const Parts slow = slow_cards(flows);
  const Parts parts = parts_of(flows);
  const std::vector<double> before = believed();
  std::vector<double> mbps = before;
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < cards_.size(); ++i) {
    Card& card = cards_[i];
    const auto found = slow.find(i);
    if (found == slow.end()) {
      const auto part = parts.find(i);
      if (part != parts.end() && part->second >= least_usual_part() * usual_part_) {
        card.slow_windows = 0;
        card.blamed_part = 0;
      }
      continue;
    }
    // It may have become slow during the first window.
    card.part = card.slow_windows++ < 2 ? found->second : std::min(card.part, found->second);
    if (card.slow_windows < kSlowWindows || card.part < kSameSpeed * card.blamed_part) continue;
    mbps[i] = std::min(card.mbps, load_mbps(i, before, shares_)) * card.part;
    texts.push_back(describe(card, mbps[i]));
  }
  if (texts.empty()) return std::nullopt;
  std::vector<double> shares = best_shares(mbps);
  if (seconds(mbps, shares_) < kLeastGain * seconds(mbps, shares)) return std::nullopt;
  for (uint32_t i = 0; i < cards_.size(); ++i) {
    Card& card = cards_[i];
    if (mbps[i] == card.mbps) continue;
    card.blamed_part = card.part;
    card.pause_us = kPauseOfSlow * window_us_;
    card.next_try_us = now + card.pause_us;
  }
  return adopt(mbps, std::move(shares), "slower network cards: " + enumerate(texts));
}

// The speed at which a card would carry its part if the others limited it.
double LinkSpeeds::load_mbps(uint32_t card, const std::vector<double>& mbps,
                             const std::vector<double>& shares) const {
  std::vector<ReducerHost> hosts = hosts_with(mbps);
  const double all = predicted_seconds(hosts, shares, kManyBytes);
  for (uint32_t i = 0; i < hosts.size(); ++i) {
    if (i != card) hosts[i].nic_mbps = kMuchFaster * hosts[card].nic_mbps;
  }
  return hosts[card].nic_mbps * predicted_seconds(hosts, shares, kManyBytes) / all;
}

std::string LinkSpeeds::describe(const Card& card, double mbps) {
  return card.host + ": " + std::to_string(std::lround(card.mbps)) + " Mbit/s so far, now " +
         std::to_string(std::lround(mbps));
}

std::vector<double> LinkSpeeds::believed() const {
  std::vector<double> mbps;
  for (const Card& card : cards_) mbps.push_back(card.mbps);
  return mbps;
}

std::vector<ReducerHost> LinkSpeeds::hosts_with(const std::vector<double>& mbps) const {
  std::vector<ReducerHost> hosts = tree_.reducer_hosts();
  std::vector<double> own = mbps;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (cards_[i].nodes == 0) own[i] = 0;
  }
  const std::vector<double> even = even_out(own, noise_);
  for (size_t i = 0; i < hosts.size(); ++i)
    hosts[i].nic_mbps = even[i] > 0 && !cards_[i].is_fixed ? even[i] : mbps[i];
  return hosts;
}

double LinkSpeeds::seconds(const std::vector<double>& mbps, const std::vector<double>& shares) const {
  return predicted_seconds(hosts_with(mbps), shares, kManyBytes);
}

std::vector<double> LinkSpeeds::best_shares(const std::vector<double>& mbps) const {
  return *reducer_host_shares(hosts_with(mbps), policy_);
}

LinkSpeeds::Change LinkSpeeds::adopt(const std::vector<double>& mbps, std::vector<double> shares,
                                     std::string text) {
  const std::vector<ReducerHost> hosts = hosts_with(mbps);
  for (uint32_t i = 0; i < cards_.size(); ++i) {
    cards_[i].mbps = mbps[i];
    cards_[i].slow_windows = 0;
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    const uint32_t card = card_of(node);
    const double node_mbps = hosts[card].nic_mbps * cards_[card].sharing;
    nodes_[node].nic_mbps = static_cast<uint32_t>(std::max(1L, std::lround(node_mbps)));
  }
  std::vector<uint32_t> of_nodes;
  for (const NodeInfo& node : nodes_) of_nodes.push_back(node.nic_mbps);
  tree_.set_speeds(of_nodes);
  return share(std::move(shares), std::move(text));
}

LinkSpeeds::Change LinkSpeeds::lose(uint32_t server) {
  tree_.lose(server);
  try_.reset();
  Change change = share_anew();
  change.moves = true;  // also if it had no share, since its names may not come back to it
  return change;
}

LinkSpeeds::Change LinkSpeeds::add(NodeInfo server, TimeUs now) {
  if (server.nic_mbps == 0) server.nic_mbps = usual_speed_of_servers();
  if (policy_.kind == PlacementPolicy::Kind::kWeights) {
    const auto first = policy_.weights.begin() + tree_.num_machines();
    const auto count = std::max<std::ptrdiff_t>(1, policy_.weights.end() - first);
    policy_.weights.push_back(std::accumulate(first, policy_.weights.end(), 0.0) /
                              static_cast<double>(count));
  }
  tree_.add(server);
  nodes_.push_back(std::move(server));
  shares_.push_back(0);
  try_.reset();
  make_cards(now);
  return share_anew();
}

// The number of weights fits, or the job would not have started.
LinkSpeeds::Change LinkSpeeds::share_anew() {
  return share(*reducer_host_shares(learns_ ? hosts_with(believed()) : tree_.reducer_hosts(), policy_), "");
}

// The mean; of all cards, if there was no server. 0 if one is unknown.
uint32_t LinkSpeeds::usual_speed_of_servers() const {
  const auto first = nodes_.size() > num_workers_ ? nodes_.begin() + num_workers_ : nodes_.begin();
  uint64_t sum = 0;
  for (auto node = first; node != nodes_.end(); ++node) {
    if (node->nic_mbps == 0) return 0;
    sum += node->nic_mbps;
  }
  return static_cast<uint32_t>(sum / static_cast<uint64_t>(nodes_.end() - first));
}

LinkSpeeds::Change LinkSpeeds::share(std::vector<double> shares, std::string text) {
  Change change;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (std::abs(shares[i] - shares_[i]) > kSameShare) change.moves = true;
  }
  shares_ = std::move(shares);
  if (learns_) pace_.emplace(tree_, shares_);
  for (const NodeInfo& node : nodes_) change.speeds.nic_mbps.push_back(node.nic_mbps);
  change.speeds.shares_ppb = in_parts_per_billion(shares_);
  change.speeds.text = std::move(text);
  settling_windows_ = 1;
  return change;
}

}  // namespace byteps::protocol
