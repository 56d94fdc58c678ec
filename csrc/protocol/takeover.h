// Rounds that a lost root has answered for some children and not for others. Pure.
//
// The root's successor begins anew: contributions that were not answered come again (kMoved), and
// each child tells of which rounds it has had an outcome (kHolds). A round that no child has an
// outcome of is summed as any other (protocol/aggregation.h). If a child has one, all others get
// the same one: summing again would need contributions that have been overwritten by results. The
// successor asks one of these children for it (kFetch), and passes it on to the children whose
// contributions wait (Park).
//
// A child that has released the outcome says so (kReleased): it is not asked.
//
// A child sends kHolds before its next contribution to the same service, but perhaps after the
// contributions of others. It holds an outcome until it gets that of a later round of the key: then
// every child has contributed to the later round, hence has the earlier one's outcome.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "protocol/aggregation.h"

namespace byteps::protocol {

class Takeover {
 public:
  // As Aggregator. Failures of rounds are Fail actions.
  Takeover(Children children, WaitLimits limits);

  // `head.rank` has an outcome of the round. (Of a machine, another rank may have those of other
  // keys.)
  void on_holds(const DataHead& head, AggregationActions& actions);
  // As Park says.
  void park(const DataHead& head, const std::vector<uint32_t>& children, TimeUs now,
            AggregationActions& actions);
  // Whether the outcome of this round was fetched from `head.rank`, and has not come yet.
  bool expects(const DataHead& head) const;
  // The outcome has come: the children that wait for it. Precondition: expects().
  std::vector<uint32_t> take(const DataHead& head);
  // All children have contributed to `round`: nobody needs an outcome of earlier ones.
  void on_complete(const Key& key, uint64_t round);
  // As Aggregator. Keeps the key if a child waits.
  void forget(const Key& key);
  // Whether a contribution of the child to the key waits for an outcome: it must not send another
  // one.
  bool waits(const Key& key, uint32_t child) const;
  // Number of keys of which something is kept.
  size_t size() const { return keys_.size(); }

  // The rank's connection is closed: what it has cannot be fetched any more.
  void on_rank_gone(uint32_t rank, AggregationActions& actions);
  // As the methods of Aggregator.
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why, AggregationActions& actions);
  void fail_all(const Status& why, AggregationActions& actions);
  void restart_waits(TimeUs now) { parked_.restart(now); }
  void on_tick(TimeUs now, AggregationActions& actions);
  TimeUs next_tick_us() const { return parked_.next_us(); }

 private:
  struct Round {
    std::vector<uint32_t> holders;  // ranks that have an outcome
    bool is_fetched = false;        // from the first of them
    // Children that wait for it; if there are any, `head` and `wait` are set.
    std::vector<uint32_t> waiting;
    DataHead head;
    WaitingList<std::pair<Key, uint64_t>>::Iterator wait;
  };
  using Rounds = std::map<uint64_t, Round>;

  static void fetch(Round& round, AggregationActions& actions);
  std::vector<uint32_t> take_waiting(Round& round);
  // Of the child of a rank.
  const std::string& describe(uint32_t rank) const;
  void fail(Round& round, const Status& why, AggregationActions& actions);
  template <typename Predicate>
  void fail_if(Predicate predicate, const Status& why, AggregationActions& actions);

  Children children_;
  std::unordered_map<Key, Rounds, KeyHash> keys_;
  WaitingList<std::pair<Key, uint64_t>> parked_;
};

}  // namespace byteps::protocol
