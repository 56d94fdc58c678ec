// The scheduler's part in measuring the network cards whose speeds nobody knows, before the job starts. Pure.
//
// When: in jobs of several worker machines in which some machine's speed is unknown. Whatever the placement policy:
// `auto` shares out by speeds, and every policy cuts partitions and paces connections by them.
//
// How: one process of each machine takes part, the first of its nodes. Machines are put into groups of four to seven
// (fewer in small jobs), workers and servers mixed. In round r the r-th of each group is the hub and the others help
// it (protocol/nic_probe): seven rounds at most, however large the job is. The scheduler begins a round when the last
// one has ended, so that no measurement disturbs another. A card that is faster than its helpers together is taken
// for slower than it is.
//
//   scheduler -> first of each machine   ProbeSetup     listen
//             <-                         ProbeReady     here; nowhere: this card cannot be measured
//             -> hubs of a round         ProbeStart     measure with these
//             <-                         ProbeDone
//
// Whoever keeps it waiting ends the survey: what is not known by then stays unknown.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "protocol/message.h"

namespace byteps::protocol {

class NicSurvey {
 public:
  struct Order {
    uint32_t node;
    Control message;
  };
  using Orders = std::vector<Order>;

  // `nodes` as in a Roster.
  NicSurvey(const std::vector<NodeInfo>& nodes, uint32_t num_workers);

  // Else there is nothing to measure, or it would not matter.
  bool is_needed() const;

  // Each step may take `grace_us`, all together until `deadline_us`.
  void start(uint32_t epoch, TimeUs grace_us, TimeUs deadline_us, TimeUs now, Orders& orders);
  // Answers that nobody waits for are ignored: they may come late.
  void on_ready(uint32_t node, const ProbeReady& ready, TimeUs now, Orders& orders);
  void on_done(uint32_t node, const ProbeDone& done, TimeUs now, Orders& orders);
  void on_tick(TimeUs now);
  TimeUs next_tick_us() const { return over_ ? kNever : step_deadline_us_; }
  bool over() const { return over_; }

  // Fills in what was measured, even (even_out), where a node's own speed is unknown. `fit_shards`: such a node's
  // services are used with so many shards only as go with its speed (protocol/pacing); the others stay idle.
  void apply(std::vector<NodeInfo>& nodes, bool fit_shards) const;

 private:
  // Of a machine.
  struct Card {
    uint32_t node;  // that takes part
    bool known = true;
    std::vector<std::string> addresses;
    double mbps = 0;  // measured
  };

  void begin_step(TimeUs now);
  void begin_round(TimeUs now, Orders& orders);
  ProbeStart order_for(size_t hub) const;

  size_t num_groups() const;
  size_t num_rounds() const;

  bool spans_machines_ = false;
  std::vector<Card> cards_;
  std::vector<uint32_t> card_of_node_;
  TimeUs grace_us_ = 0;
  TimeUs deadline_us_ = 0;
  TimeUs step_deadline_us_ = 0;
  uint32_t next_round_ = 0;
  std::set<uint32_t> awaited_;  // nodes
  bool over_ = false;
};

// Speeds that are within a tenth of each other are meant to be equal: each such group gets its fastest, as other
// traffic slows a measurement down and nothing speeds it up. So noise makes no shares. Zeros (unknown) stay.
std::vector<double> even_out(const std::vector<double>& speeds);

}  // namespace byteps::protocol
