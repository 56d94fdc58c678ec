// The values that one summation shard keeps from one push_pull to the next, and how far ranks may be apart. Pure.
//
// Every rank counts its push_pulls of a tensor in rounds. With staleness s, round r of a rank is answered once every
// rank has had round r - s: so the answer has everything in it that all ranks have contributed up to there, and it has
// the rank's own contributions. s = 0 is synchronous; with kUnboundedStaleness nobody waits for anybody.
//
// A contribution is added when it may be answered, not before, and those that become so at the same time are added
// in the order of ranks and get the same answer. Hence with s = 0 a value is the same bit for bit whatever the order of
// arrival; and a contribution that fails was never added. The value begins with what the root contributes to a kSeed
// (others of the root change nothing); nobody is answered before. So a rank that comes late seeds, too, and gets
// what there is by then, and the others are at most s rounds ahead of it.
//
// Waiting for a rank has the limits of every push_pull (WaitLimits), counted from the contribution that waits.
// It waits for one round of the slowest ranks at most, however far it is ahead, because it sent its last one within the
// bound: so it fails only if a rank that is needed has not contributed for so long, whatever its own lead.
//
// Memory of contributions belongs to the caller, who keeps it by (key, rank) from on_contribution until the Answer or
// Fail that names the rank.
// Source: stale synchronous parallel, Ho et al., NIPS 2013, section 3; asynchronous mode, Jiang et al., OSDI 2020.
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

// The contribution of head.rank is the value: there was none.
struct StoreFirstValue {
  DataHead head;
};
// Add the contributions of those with kAccumulate to the value, in this order, and answer all with what it is then.
struct Answer {
  Key key;
  std::vector<DataHead> heads;  // in the order of ranks
};
using StalenessAction = std::variant<StoreFirstValue, Answer, Fail, Stalled>;
using StalenessActions = std::vector<StalenessAction>;

class StalenessTracker {
 public:
  using Verdict = Aggregator::Verdict;

  // `ranks`: of each_rank (protocol/tree.h).
  StalenessTracker(Children ranks, WaitLimits limits);
  StalenessTracker(const StalenessTracker&) = delete;
  StalenessTracker& operator=(const StalenessTracker&) = delete;

  // As Aggregator's, of head.rank, which the caller has checked. Refused: for what has failed, and where a rank that is
  // needed has left.
  Result<Verdict> admit(const DataHead& head, uint64_t payload_bytes) const;

  // An accepted payload is complete, or a refused one thrown away: then a Fail for this rank follows. If its head
  // disagrees with the first one's (dtype, shape, bytes, root, staleness), the key fails for all, now and later, naming
  // both ranks. Cost: O(1) on average over a round of all ranks, without allocation but for what waits and the Answer.
  void on_contribution(const DataHead& head, TimeUs now, StalenessActions& actions);

  // The rank will contribute no more; what waits is added all the same. What needs a round of it that it has not had
  // fails with `why`, now and later.
  void on_rank_gone(uint32_t rank, const Status& why, StalenessActions& actions);
  // As Aggregator's.
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why, StalenessActions& actions);
  void fail_all(const Status& why, StalenessActions& actions);
  void on_tick(TimeUs now, StalenessActions& actions);
  TimeUs next_tick_us() const { return waiting_.next_us(); }

  // Contributions that are not answered.
  size_t waiting() const { return waiting_.size(); }
  uint32_t num_ranks() const { return static_cast<uint32_t>(ranks_.describe.size()); }

 private:
  struct KeyState;
  struct Contribution {
    KeyState* state = nullptr;
    DataHead head;
  };
  using Waits = WaitingList<Contribution>;
  struct KeyState {
    DataHead first;  // what the others have to agree with
    bool has_value = false;
    std::vector<uint64_t> last_round;        // by rank
    std::vector<Waits::RootLocation> waits;  // by rank; none(): answered
    uint64_t slowest_round = 0;              // the least of last_round
    uint32_t slowest_count = 0;              // of ranks that are no further
    Status failure;
  };

  Status check_head(const DataHead& head, uint64_t payload_bytes) const;
  KeyState& state_of(const DataHead& head);
  // Why the contribution cannot succeed; ok if nothing is against it.
  Status refusal(const KeyState* state, const DataHead& head) const;
  // Whether the answer to `head` lacks a round of `rank`.
  static bool lacks(const KeyState* state, const DataHead& head, uint32_t rank);
  // One round; true if the slowest ranks have moved on.
  static bool advance(KeyState& state, uint32_t rank);
  static bool may_answer(const KeyState& state, const DataHead& head);
  void answer_ready(KeyState& state, StalenessActions& actions);
  DataHead end_wait(Waits::RootLocation place);
  void fail(Waits::RootLocation place, const Status& why, StalenessActions& actions);
  // Those for which `why` gives a reason.
  template <typename Why>
  void fail_waits(Why why, StalenessActions& actions);
  std::string describe(const Waits::Wait& wait, TimeUs now) const;

  Children ranks_;
  std::unordered_map<Key, KeyState, KeyHash> keys_;  // never erased from: waits point into it
  Waits waiting_;                                    // not answered
  const Waits::RootLocation none_ = waiting_.none();
  std::vector<Status> gone_;  // by rank; ok: present
  std::vector<uint32_t> gone_ranks_;
  std::unordered_map<uint32_t, Status> failed_tensors_;
  Status failed_;
};

}  // namespace byteps::protocol
