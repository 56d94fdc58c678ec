// Stored tensors of one summation shard: bounds how far ranks may be apart. Pure.
//
// With staleness s, round r of a rank is answered once every rank has contributed round r - s. So
// the answer contains all contributions of all ranks up to that round, and the rank's own. s = 0 is
// synchronous; with kUnboundedStaleness no rank waits for another.
//
// A contribution is added when it may be answered, not before. Those that become ready at the same
// time are added in the order of ranks and get the same answer. So with s = 0 a value is the same
// bit for bit in any order of arrival, and a failed contribution was never added. The initial value
// is the root's contribution to a kSeed (later seeds change nothing); nobody is answered before it.
// A rank that starts late seeds as well: it gets the current value, and the others are at most s
// rounds ahead of it.
//
// A contribution has the limits of every push_pull (WaitLimits), counted from its arrival. Its rank
// was within the bound before, so it waits for one round of the slowest ranks at most, however far
// ahead it is.
//
// The caller owns the memory of contributions and keeps it by (key, rank) from on_contribution to
// the Answer or Fail that names the rank.
//
// Source: stale synchronous parallel: Ho et al., NIPS 2013, section 3; asynchronous mode: Jiang et
// al., OSDI 2020.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/aggregation.h"
#include "protocol/message.h"
#include "protocol/tree.h"
#include "protocol/waiting_list.h"

namespace byteps::protocol {

// The contribution of head.rank becomes the value; there was none.
struct StoreFirstValue {
  DataHead head;
};
// Add the contributions with kAccumulate to the value, in this order, and answer all of `heads`
// with the new value.
struct Answer {
  Key key;
  std::vector<DataHead> heads;  // ordered by rank
  bool is_again = false;        // the value contains them already: add nothing
};
using StalenessAction = std::variant<StoreFirstValue, Answer, Fail, Stalled>;
using StalenessActions = std::vector<StalenessAction>;

class StalenessTracker {
 public:
  using Verdict = Aggregator::Verdict;
  using Actions = StalenessActions;

  // `ranks`: from each_rank (protocol/tree.h).
  StalenessTracker(Children ranks, WaitLimits limits);
  StalenessTracker(const StalenessTracker&) = delete;
  StalenessTracker& operator=(const StalenessTracker&) = delete;

  // Like Aggregator::admit, for head.rank, which the caller has checked. Refused if the key has
  // failed, or if a rank that it needs has left.
  Result<Verdict> admit(const DataHead& head, uint64_t payload_bytes) const;

  // The payload of an accepted contribution is complete, or that of a refused one discarded; then a
  // Fail for this rank follows. If its head disagrees with the key's first head (dtype, shape,
  // bytes, root, staleness), the key fails for all, now and later, and the message names both. O(1)
  // on average over a round of all ranks; allocates only for what waits and the Answer.
  void on_contribution(const DataHead& head, TimeUs now, StalenessActions& actions);

  // After the loss of a root (protocol/stored_takeover.h). At the lost root: which rounds of each
  // rank the value of a key contains, as numbers that mean something to restore() only. They never
  // become smaller.
  std::vector<uint64_t> included(const Key& key) const;
  // At its successor: the value is the one that contains these rounds. Later contributions have to
  // agree with `first`. Precondition: the key is new, and there is a number for each rank.
  void restore(const DataHead& first, const std::vector<uint64_t>& rounds);
  bool knows(const Key& key) const { return keys_.contains(key); }

  // Error: on_contribution() must not get such a head from its rank.
  Status check(const DataHead& head, uint64_t payload_bytes) const;
  // Not ok: all contributions to the key fail.
  Status failure(const Key& key) const;

  // The rank will contribute no more. What it has contributed is still added. Contributions that
  // need one of its missing rounds fail with `why`, now and later.
  void on_child_gone(uint32_t rank, const Status& why, StalenessActions& actions);
  // Like Aggregator's, here and below.
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why, StalenessActions& actions);
  void fail_all(const Status& why, StalenessActions& actions);
  void restart_waits(TimeUs now) { waiting_.restart(now); }
  void on_tick(TimeUs now, StalenessActions& actions);
  TimeUs next_tick_us() const { return waiting_.next_us(); }

  // Number of contributions that are not answered.
  size_t waiting() const { return waiting_.size(); }
  // Each rank is a child.
  uint32_t num_children() const { return static_cast<uint32_t>(ranks_.describe.size()); }
  int32_t child_of_rank(uint32_t rank) const {
    return rank < num_children() ? static_cast<int32_t>(rank) : -1;
  }

 private:
  struct KeyState;
  struct Contribution {
    KeyState* state = nullptr;
    DataHead head;
  };
  using Waits = WaitingList<Contribution>;
  struct KeyState {
    DataHead first;  // the others have to agree with it
    bool has_value = false;
    std::vector<uint64_t> last_round;    // indexed by rank
    std::vector<bool> last_failed;       // likewise: the last round that is over has failed
    std::vector<Waits::Iterator> waits;  // indexed by rank; none(): answered
    uint64_t slowest_round = 0;          // the minimum of last_round
    uint32_t slowest_count = 0;          // number of ranks at slowest_round
    Status failure;
  };

  KeyState& state_of(const DataHead& head);
  // Why the contribution cannot succeed; ok if it may.
  Status refusal(const KeyState* state, const DataHead& head) const;
  // Whether the answer to `head` needs a round that `rank` has not contributed.
  static bool lacks(const KeyState* state, const DataHead& head, uint32_t rank);
  // Advances the rank by one round; true if slowest_round has increased.
  static bool advance(KeyState& state, uint32_t rank);
  static void count_slowest(KeyState& state);
  static bool may_answer(const KeyState& state, const DataHead& head);
  void answer_ready(KeyState& state, StalenessActions& actions);
  // A contribution whose answer was lost with the root that gave it.
  void answer_again(const KeyState& state, const DataHead& head, StalenessActions& actions) const;
  DataHead end_wait(Waits::Iterator wait);
  void fail(Waits::Iterator wait, const Status& why, StalenessActions& actions);
  // Fails the waiting contributions for which `why` returns an error.
  template <typename Why>
  void fail_waits(Why why, StalenessActions& actions);
  std::string describe(const Waits::Wait& wait, TimeUs now) const;

  Children ranks_;
  // Never erased from: waiting contributions point into it.
  std::unordered_map<Key, KeyState, KeyHash> keys_;
  Waits waiting_;  // contributions without an answer
  const Waits::Iterator none_ = waiting_.none();
  std::vector<Status> gone_;  // indexed by rank; ok: present
  std::vector<uint32_t> gone_ranks_;
  std::unordered_map<uint64_t, Status> failed_tensors_;
  Status failed_;
};

}  // namespace byteps::protocol
