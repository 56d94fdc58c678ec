// The scheduler's part in measuring network cards of unknown speed, before the job starts. Pure.
//
// Runs in jobs of several worker machines if the speed of any machine's card, also a server's, is
// unknown, under every placement policy: all of them derive partition sizes and pacing from speeds.
//
// The first node of each machine takes part. Machines form groups of four to seven (fewer in small
// jobs). In round r the r-th machine of each group is the hub and the others help it
// (protocol/nic_probe.h), so there are at most seven rounds however large the job is. A round
// begins after the previous one has ended, so that no measurement disturbs another.
//
// A hub first measures with one connection to each helper. If that is not enough for a conclusion,
// it measures again with several: where the speed may be too much for one thread, with one for each
// thread; on long paths that lose packets, where each costs a connection much of its rate, with all
// shards. If it has found out nothing, for example because a connection came late, it tries again.
//
//   scheduler -> first of each machine   ProbeSetup     listen
//             <-                         ProbeReady     addresses; none: cannot be measured
//             -> hubs of a round         ProbeStart     measure with these helpers; once or twice
//             <-                         ProbeDone
//
// A node that exceeds the time limit of a step ends the survey; speeds not measured by then stay
// unknown.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "protocol/message.h"

namespace byteps::protocol {

// Connections to a service over a long path, where that is faster: the shards that a service offers
// before its card has been measured.
inline constexpr uint32_t kShardsOfLongPath = 8;
// Round trips from which on a path is long.
inline constexpr TimeUs kLongPathUs = 20'000;

// By what factor measurements of equal cards differ: usually, and where packets are lost.
inline constexpr double kSpeedNoise = 1.1;
inline constexpr double kSpeedNoiseWithLosses = 1.5;

class NicSurvey {
 public:
  struct Order {
    uint32_t node;
    Control message;
  };
  using Orders = std::vector<Order>;

  // `nodes` in the order of Roster::nodes. `long_path_us`: round trips from which on a path is long.
  NicSurvey(const std::vector<NodeInfo>& nodes, uint32_t num_workers, TimeUs long_path_us);

  // False if nothing is to be measured, or it would make no difference.
  bool is_needed() const;

  // Each step may take `grace_us`; all steps end by `deadline_us`.
  void start(uint32_t epoch, TimeUs grace_us, TimeUs deadline_us, TimeUs now, Orders& orders);
  // Answers that are not awaited are ignored: they may be late.
  void on_ready(uint32_t node, const ProbeReady& ready, TimeUs now, Orders& orders);
  void on_done(uint32_t node, const ProbeDone& done, TimeUs now, Orders& orders);
  void on_tick(TimeUs now);
  TimeUs next_tick_us() const { return over_ ? kNever : step_deadline_us_; }
  bool over() const { return over_; }

  // Packets get lost or paths are long, which costs two connections that share a path more time than
  // one that has it alone.
  bool suits_turns() const;
  // By what factor measurements of equal cards differ in this network.
  double noise() const { return loses_ ? kSpeedNoiseWithLosses : kSpeedNoise; }
  // The longest one that was seen; 0: none was.
  TimeUs round_trip_us() const { return round_trip_us_; }

  // Fills in the measured speeds (evened out by even_out) of nodes whose own speed is unknown, and
  // reduces the shards of each service to those that it is to use; the others stay idle. These are
  // all if several connections were faster on a long path; otherwise one for each thread, and with
  // `fit_shards` at most as many as suit the measured speed (protocol/pacing.h).
  void apply(std::vector<NodeInfo>& nodes, bool fit_shards) const;

 private:
  // One machine's card.
  struct Card {
    uint32_t node;  // the node that takes part
    bool known = true;
    uint32_t num_threads = 1;  // of that node
    uint32_t num_shards = 1;   // that it offers
    std::vector<std::string> addresses;
    uint32_t connections = 1;  // to each helper, in the current or last measurement
    double mbps = 0;           // measured
    double mbps_of_one = 0;    // with one connection
    double mbps_of_all = 0;    // with all, on a long path
    bool is_measured = false;  // once, or more often
    // All connections are faster than one.
    bool gains_by_all() const;
  };

  void begin_step(TimeUs now);
  void begin_round(TimeUs now, Orders& orders);
  ProbeStart order_for(size_t hub) const;
  // The number of connections for a second measurement; 0: none is needed.
  uint32_t second_connections(const Card& card, const ProbeDone& first) const;
  bool needs_all_shards(const Card& card) const;

  size_t num_groups() const;

  TimeUs long_path_us_;
  bool spans_machines_ = false;
  bool loses_ = false;  // the network has lost packets of a measurement
  TimeUs round_trip_us_ = 0;
  std::vector<Card> cards_;
  std::vector<uint32_t> card_of_node_;
  TimeUs grace_us_ = 0;
  TimeUs deadline_us_ = 0;
  TimeUs step_deadline_us_ = 0;
  uint32_t next_round_ = 0;
  std::set<uint32_t> awaited_;  // nodes that have not answered
  bool over_ = false;
};

// Speeds within the factor `noise` of each other are taken for equal: each group of them gets its
// highest speed, because other traffic and losses can only slow a measurement down. So noise does
// not affect shares. Zeros (unknown) stay.
std::vector<double> even_out(const std::vector<double>& speeds, double noise);

}  // namespace byteps::protocol
