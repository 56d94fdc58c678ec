// The rounds of one summation shard at one level of the tree: which contributions have arrived,
// which rounds are complete, and who gets an answer. Pure.
//
// A child is a worker, or a machine represented by one of its ranks (protocol/tree.h). To each
// round of a key it contributes at most once, in ascending order, or reports that it cannot. It
// continues with a later round only after the earlier one was answered or has failed.
//
// Rounds belong to a name (protocol/rounds.h). A child may skip rounds: those that it has refused,
// and those whose tensor has fewer partitions. A round that one child has skipped and another one
// has not can never complete, so it fails at once: contributions of different rounds are never
// summed. The first partition belongs to every round, so ranks that mean different tensors by one
// name are detected there.
//
// When a root is lost, its rounds begin again at its successor. The root may have answered some
// children: they go on to later rounds, and the others wait for the outcome (Park).
//
// The caller owns the memory of contributions and keeps it by (key, child) from on_contribution to
// the Complete or Fail of the key.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/failure_history.h"
#include "protocol/message.h"
#include "protocol/tree.h"
#include "protocol/waiting_list.h"

namespace byteps::protocol {

// All contributions have arrived: reduce them in the order of children and answer every child.
struct Complete {
  // The head of the first contribution: key, round, dtype, op, root, bytes. Its priority is the
  // largest of all contributions, its plan that of rank 0.
  DataHead head;
};
// The round cannot complete: drop the contributions of `children` and answer each with `status`.
struct Fail {
  DataHead head;  // head of the first contribution, or of the refused one
  std::vector<uint32_t> children;
  Status status;
  // false: a contribution to a round that has failed before is refused, and the root knows it
  bool ends_round;
};
// The contributions of `children` came after their root was lost (kMoved), and another child has
// had an outcome of the round: they wait for it (protocol/takeover.h), and are not summed.
struct Park {
  DataHead head;
  std::vector<uint32_t> children;
};
// Ask `rank` for the outcome of the round of `head`.
struct Fetch {
  DataHead head;
  uint32_t rank;
};
using AggregationAction = std::variant<Complete, Fail, Stalled, Park, Fetch>;
using AggregationActions = std::vector<AggregationAction>;

// "float32 of shape (2, 3)", or "6 elements of float32" if the shape is unknown.
std::string describe_tensor(const DataHead& head);

class Aggregator {
 public:
  using Actions = AggregationActions;

  Aggregator(Children children, WaitLimits limits);
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  enum class Verdict {
    kAccept,  // receive the payload, then call on_contribution
    kRepeat,  // has arrived or been answered before: discard the payload, do nothing
    kRefuse,  // discard the payload, then call on_contribution, which answers with a Fail
  };
  // What to do with a kPushPull or kFailed from `child` whose head has arrived; `payload_bytes`:
  // size of the frame's payload. Changes no state. On an error (kDataLoss) the child has broken the
  // protocol (next round before the answer, payload size that contradicts the head): close its
  // connection.
  Result<Verdict> admit(const DataHead& head, uint32_t child, uint64_t payload_bytes) const;

  // The payload of an accepted contribution is complete, or that of a refused one discarded. If it
  // is refused, or its round failed while the payload arrived, a Fail for this child alone follows.
  // If its head disagrees with the first of the round (dtype, op, shape, bytes, root), the round
  // fails for all, and the message names both children. If an earlier round waits for this child,
  // that round fails. O(1); allocates nothing once every child has contributed to the key.
  void on_contribution(const DataHead& head, uint32_t child, TimeUs now, AggregationActions& actions);

  // The child cannot contribute to the round, for the reason `why`: the round fails for all others.
  void on_failed_contribution(const DataHead& head, uint32_t child, const Status& why,
                              AggregationActions& actions);

  // The child has had an outcome of the round, from a root that is lost: it does not contribute to
  // it.
  void on_holds(const Key& key, uint64_t round, uint32_t child, AggregationActions& actions);

  // The child will contribute no more: rounds that lack it fail with `why`, now and later.
  void on_child_gone(uint32_t child, const Status& why, AggregationActions& actions);
  // The same, but it may still tell of outcomes that it has (on_holds): rounds with contributions
  // that come after the loss of a root go on waiting for it, until it is gone.
  void on_child_lingers(uint32_t child, const Status& why, AggregationActions& actions);

  // A server is lost: rounds begin to wait anew. The ranks that they wait for may have waited for that
  // server.
  void restart_waits(TimeUs now) { gathering_.restart(now); }

  // The name with this number has failed (Refused): its rounds up to `last_round` fail with `why`,
  // now and later.
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why, AggregationActions& actions);

  // All children have forgotten the key: none will contribute to it again. Returns whether nothing
  // is kept for it: false if one of its rounds waits, which no child in order allows.
  bool forget(const Key& key);
  // The same for the failures of the whole name, one of whose keys has this `tensor`.
  void forget_tensor(uint64_t tensor) { failed_tensors_.erase(number_of({tensor, 0})); }

  // Adds the numbers of the names to which children have contributed and which are not forgotten.
  void add_tensors(std::set<uint64_t>& numbers) const;

  // All waiting rounds and all later contributions fail with `why`.
  void fail_all(const Status& why, AggregationActions& actions);

  // Issues warnings, and fails rounds that have waited too long.
  void on_tick(TimeUs now, AggregationActions& actions);
  // Time at which on_tick is due; kNever if no round waits.
  TimeUs next_tick_us() const { return gathering_.next_us(); }

  // Number of rounds that wait for contributions.
  size_t gathering() const { return gathering_.size(); }

  uint32_t num_children() const { return static_cast<uint32_t>(children_.describe.size()); }
  // -1: `rank` is not below this service.
  int32_t child_of_rank(uint32_t rank) const {
    return rank < children_.of_rank.size() ? children_.of_rank[rank] : -1;
  }

 private:
  struct KeyState {
    Key key;
    std::vector<uint64_t> last_round;  // last round that each child has contributed to
    // The round that collects contributions; children with last_round == first.round have
    // contributed.
    uint32_t arrived_count = 0;  // 0: no round is open
    bool is_used = false;        // there was a contribution
    bool is_moved = false;       // one of the open round came after its root was lost
    DataHead first;              // head of the first contribution
    uint32_t first_child = 0;
    FailureHistory failures;                // of rounds that not all children have contributed to
    WaitingList<KeyState*>::Iterator wait;  // entry of the open round
  };

  KeyState& state_of(const Key& key);
  // The same for a failure. One that a child has sent before it forgot the key may arrive after all
  // have: so of the keys that have nothing but failures only the last ones are kept.
  KeyState& state_of_failure(const Key& key);
  Status check_head(const DataHead& head, uint32_t child, uint64_t payload_bytes) const;
  Status refusal(const DataHead& head, const KeyState* state) const;
  // The child takes no part in rounds before `round` any more: the open one fails if it is earlier.
  void leave_behind(KeyState& state, uint32_t child, uint64_t round, const Status& why,
                    AggregationActions& actions);
  void end_round(KeyState& state);
  static void note_failure(KeyState& state, uint64_t round, const Status& why);
  void fail_round(KeyState& state, const Status& why, AggregationActions& actions);
  void park_round(KeyState& state, AggregationActions& actions);
  bool is_past(const KeyState& state, uint64_t round, uint32_t child) const;
  std::vector<uint32_t> arrived(const KeyState& state) const;
  template <typename Predicate>
  void fail_rounds_if(Predicate predicate, const Status& why, AggregationActions& actions);
  std::string describe_wait(const WaitingList<KeyState*>::Wait& wait, TimeUs now) const;

  Children children_;
  std::unordered_map<Key, KeyState, KeyHash> keys_;  // the list points into it
  std::deque<Key> unused_keys_;                      // as they began; some are used by now
  WaitingList<KeyState*> gathering_;
  std::vector<Status> gone_;   // indexed by child; ok: present
  std::vector<bool> lingers_;  // likewise: gone, but for outcomes that it has
  std::vector<uint32_t> gone_children_;
  std::unordered_map<uint64_t, FailureHistory> failed_tensors_;  // key: number of the name
  Status failed_;
};

}  // namespace byteps::protocol
