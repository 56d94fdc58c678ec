// Speeds of network cards, learned from the traffic of the job while it runs. Pure.
//
// Every node reports what it has sent to each other node, and for how long it had bytes to send
// (Traffic). Connections are paced so that all of them finish at once (protocol/pacing.h). So where
// all speeds are as believed, a flow that has bytes to send carries its paced rate, and a flow that
// carries less has a slow card at one of its ends. From the reports of a window:
//   - A flow is *slow* if it has carried less than 0.85 of its paced rate while it was busy, and
//     less than 0.85 of what the best flows have carried of theirs lately: if the whole network is
//     slower, the best placement is still the same. Where packets are lost, flows are uneven, and
//     0.67 takes the place of 0.85.
//   - The card with the most slow flows is slow; then the card with the most slow flows among the
//     remaining ones, and so on (greedy cover; of several with equally many all are). Only a card
//     whose flows together carry less of their rate than another card's can be. Its speed is the
//     believed one times what its flows have carried of their rate.
//   - Speeds change, and with them shares, if cards are slow for three windows and a push_pull with
//     the new shares takes at least 5 % less time. So noise and short stalls move nothing.
// A card whose flows still carry the same part of their rate after a change was not the cause: its
// speed stays. Paced flows never carry more than believed, so higher speeds are *tried*: now and
// then the slowest cards whose flows carry their paced rate are believed to be faster for three
// windows: up to twice as fast, but not faster than the next faster cards, or a quarter if there
// are none. If they would carry more with the shares of now, only the pace changes. Otherwise
// shares change, too, but only so far that a push_pull takes at most a quarter longer if the cards
// are not faster. A try that succeeds is followed by the next one at once, one that fails after
// twice the last pause. The first try comes sooner where the measurement at the start has seen
// losses.
//
// Cards whose speed is told (NodeInfo::nic_is_told) keep it. Nothing is learned under a policy
// other than `auto`, whose shares do not depend on speeds, in jobs of one machine or of more than
// 256 nodes, whose reports would be too many, and if a speed is unknown or all are told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "protocol/message.h"
#include "protocol/pacing.h"
#include "protocol/placement.h"
#include "protocol/tree.h"

namespace byteps::protocol {

class LinkSpeeds {
 public:
  // `nodes` in the order of Roster::nodes, with the speeds of the start. `window_us`: time between
  // two reports of a node. `noise`: by what factor what equal cards carry differs
  // (NicSurvey::noise). `takes_turns`: Roster::takes_turns.
  LinkSpeeds(std::vector<NodeInfo> nodes, uint32_t num_workers, const PlacementPolicy& policy,
             TimeUs window_us, double noise, TimeUs now, bool takes_turns = false);

  // False: on_report() must not be called.
  bool learns() const { return learns_; }
  TimeUs window_us() const { return window_us_; }

  // kDataLoss if the report names a node that does not exist.
  Status on_report(uint32_t node, const Traffic& traffic, TimeUs now);

  struct Change {
    Speeds speeds;       // without placement
    bool moves = false;  // the shares change: roots move
  };
  // Ends a window if it is due. Nullopt: all stays as it is.
  std::optional<Change> on_tick(TimeUs now);
  // kNever: there is no traffic.
  TimeUs next_tick_us() const { return next_tick_us_; }

  // The server is lost: it gets no share from now on.
  Change lose(uint32_t server);
  // A server has come: it gets a share from now on. If the speed of its card is unknown and those
  // of the others are known, it counts as the mean of the other servers' cards until traffic shows
  // more.
  Change add(NodeInfo server, TimeUs now);

  // The nodes with their speeds, and the shares of reducer hosts, as they are in use.
  const Tree& tree() const { return tree_; }
  const std::vector<double>& shares() const { return shares_; }

 private:
  // A flow carries this part of its paced rate even if it is a little disturbed; less where equal
  // cards carry different parts.
  static constexpr double kUsualPart = 0.85;
  double least_usual_part() const { return std::min(kUsualPart, 1 / noise_); }
  // Smaller gains are not worth a move.
  static constexpr double kLeastGain = 1.05;

  // A card has the number of its reducer host; servers on machines with workers have none.
  struct Card {
    std::string host;      // names of its nodes' hosts, for messages
    uint32_t nodes = 0;    // number of nodes that use it
    uint32_t sharing = 1;  // servers of one machine that have equal parts of its card
    bool is_fixed = false;
    double mbps = 0;  // as believed; even_out() has made those that are in use
    int slow_windows = 0;
    // The smallest part of its rate that it has carried in these windows but the first. To give a
    // slow card too much costs more than to give it too little.
    double part = 0;
    // The part for which it was made slower; 0 once it has carried its rate since.
    double blamed_part = 0;
    TimeUs next_try_us = 0;
    TimeUs pause_us = 0;  // after a try that fails
  };
  // What a card has sent to another one in a window, and would have at its paced rate.
  struct Carried {
    double bytes = 0;
    double due_bytes = 0;
    double part() const { return due_bytes > 0 ? bytes / due_bytes : 1; }
  };
  using Pair = std::pair<uint32_t, uint32_t>;
  using Flows = std::map<Pair, Carried>;  // by sending and receiving card
  struct Try {
    std::vector<uint32_t> cards;
    std::vector<double> mbps;        // of all cards
    std::vector<double> shows_mbps;  // what `cards` carry if they can
    std::vector<double> shares;
    int windows = 0;  // that have passed
    int judged = 0;   // of them, with enough traffic
    double part = 0;  // sum over the judged windows
  };

  void make_cards(TimeUs now);
  uint32_t usual_speed_of_servers() const;
  // "host a: 200 Mbit/s so far, now 50".
  static std::string describe(const Card& card, double mbps);
  uint32_t card_of(uint32_t node) const;
  Flows end_window();
  // What cards have carried of their paced rate, in the worse direction. Without cards that had too
  // little traffic.
  using Parts = std::map<uint32_t, double>;
  static Parts parts_of(const Flows& flows);
  // Finds slow cards: how much of their rate they carry, by card.
  Parts slow_cards(Flows flows);
  std::optional<Change> learn_slower(const Flows& flows, TimeUs now);
  std::optional<Change> begin_try(const Parts& parts, TimeUs now);
  // The slowest cards whose pause is over and whose flows carry their paced rate, and their equals.
  std::vector<uint32_t> cards_to_try(const Parts& parts, TimeUs now) const;
  double next_faster_mbps(uint32_t than) const;
  std::optional<Try> make_try(const std::vector<uint32_t>& cards, double factor, bool moves) const;
  std::optional<Change> go_on_trying(const Parts& parts, TimeUs now);
  Change end_try(TimeUs now);
  // The reducer hosts as they would be with these speeds, by card.
  std::vector<ReducerHost> hosts_with(const std::vector<double>& mbps) const;
  std::vector<double> believed() const;
  double seconds(const std::vector<double>& mbps, const std::vector<double>& shares) const;
  double load_mbps(uint32_t card, const std::vector<double>& mbps, const std::vector<double>& shares) const;
  std::vector<double> best_shares(const std::vector<double>& mbps) const;
  // Paces for these speeds and shares from now on.
  Change adopt(const std::vector<double>& mbps, std::vector<double> shares, std::string text);
  // The shares for the hosts of now.
  Change share_anew();
  // Sets the shares.
  Change share(std::vector<double> shares, std::string text);

  std::vector<NodeInfo> nodes_;
  uint32_t num_workers_;
  PlacementPolicy policy_;
  TimeUs window_us_;
  double noise_;
  TimeUs next_tick_us_ = kNever;
  Tree tree_;
  bool learns_ = false;
  std::vector<Card> cards_;
  std::vector<double> shares_;
  std::optional<Pace> pace_;
  std::map<std::pair<Pair, bool>, std::pair<uint64_t, uint64_t>> reported_;  // since the last tick
  double usual_part_ = 0;  // what the best flows carry of their paced rate
  std::optional<Try> try_;
  int settling_windows_ = 0;  // after a change, whose flows are of both paces
};

}  // namespace byteps::protocol
