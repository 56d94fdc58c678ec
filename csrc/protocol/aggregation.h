// The rounds of one summation shard: which contributions are in, what is complete, who has to be told. Pure.
//
// A child is a worker, or a machine that one of its ranks speaks for (protocol/tree.h); sums are taken in the order
// of children. Rounds are those of a name (protocol/push_pull_table.h). A child contributes at most once to each round of
// a key, in their order, or says that it cannot, and goes on to a later one only after this one was answered or has
// failed. It may leave rounds out: those that it has refused, and those in which the tensor has not so many partitions. A
// round that one child has left out and another one has not is complete never, so it fails at once: contributions of
// different rounds never meet. All of a round are in its first partition, or will be; so ranks that
// mean different tensors meet there. Memory of contributions belongs
// to the caller, who keeps it by (key, child) from on_contribution until the key's Complete or Fail.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/tree.h"
#include "protocol/waiting_list.h"

namespace byteps::protocol {

// All contributions are in: reduce them in the order of children and answer every child.
struct Complete {
  DataHead
      head;  // of the first contribution: key, round, dtype, op, root, bytes; the largest priority; rank 0's plan
};
// The round cannot be completed: drop the contributions of `children` and answer each with `status`.
struct Fail {
  DataHead head;  // of the first contribution, or of the refused one
  std::vector<uint32_t> children;
  Status status;
  bool ends_round;  // false: one child came too late, or asked for what cannot be any more; the root knows
};
using AggregationAction = std::variant<Complete, Fail, Stalled>;
using AggregationActions = std::vector<AggregationAction>;

class Aggregator {
 public:
  Aggregator(Children children, WaitLimits limits);
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  enum class Verdict {
    kAccept,  // take the payload, then call on_contribution
    kRepeat,  // already in, or already answered: throw the payload away, do nothing
    kRefuse,  // throw the payload away, then call on_contribution, which answers with a Fail
  };
  // A kPushPull or kFailed from `child` has come in; `payload_bytes` as the frame says. Changes nothing. An error: the child
  // breaks the protocol (next round before the answer, payload size that contradicts the head): close its connection.
  Result<Verdict> admit(const DataHead& head, uint32_t child, uint64_t payload_bytes) const;

  // An accepted payload is complete, or a refused one thrown away. If it was refused, or the round has failed while
  // the payload came in, a Fail for this child alone follows. If its head disagrees with the round's first (dtype,
  // op, shape, bytes, root), the round fails for all, naming both ranks. If an earlier round waits for this child, that
  // one fails. Cost: O(1), without allocation once every child has contributed to the key.
  void on_contribution(const DataHead& head, uint32_t child, TimeUs now, AggregationActions& actions);

  // The child cannot contribute to the round, for whatever reason `why` gives: it fails for all others.
  void on_failed_contribution(const DataHead& head, uint32_t child, const Status& why,
                              AggregationActions& actions);

  // The child will contribute no more (left in order, or lost). Rounds that lack it fail with `why`, now and later.
  void on_child_gone(uint32_t child, const Status& why, AggregationActions& actions);

  // The name with this number (Refused) has failed: its rounds up to this one fail with `why`, now and later.
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why, AggregationActions& actions);

  // Everything outstanding fails with `why`, and so does every later contribution.
  void fail_all(const Status& why, AggregationActions& actions);

  // Warns of and fails rounds that have waited too long.
  void on_tick(TimeUs now, AggregationActions& actions);
  // When on_tick has something to do next; kNever if nothing waits.
  TimeUs next_tick_us() const { return gathering_.next_us(); }

  // Rounds that wait for contributions.
  size_t gathering() const { return gathering_.size(); }

  uint32_t num_children() const { return static_cast<uint32_t>(children_.describe.size()); }
  // -1: `rank` is not below this service.
  int32_t child_of_rank(uint32_t rank) const {
    return rank < children_.of_rank.size() ? children_.of_rank[rank] : -1;
  }

 private:
  struct KeyState {
    Key key;
    std::vector<uint64_t> last_round;  // by child: the last one that it contributed to
    // The round that gathers contributions; those who have last_round == first.round are in.
    uint32_t arrived_count = 0;  // 0: no round gathers
    DataHead first;              // of the first contribution
    uint32_t first_child = 0;
    // Later contributions to rounds up to this one get `failure`.
    uint64_t failed_round = 0;
    Status failure;
    WaitingList<KeyState*>::RootLocation place;  // of the round that gathers
  };

  struct FailedTensor {
    uint64_t last_round = 0;
    Status why;
  };

  KeyState& state_of(const Key& key);
  Status check_head(const DataHead& head, uint32_t child, uint64_t payload_bytes) const;
  Status refusal(const Key& key, const KeyState* state, uint64_t round) const;
  // The child has no part in rounds before this one any more: the one that gathers fails if it is earlier.
  void leave_behind(KeyState& state, uint32_t child, uint64_t round, const Status& why,
                    AggregationActions& actions);
  void end_round(KeyState& state);
  void fail_round(KeyState& state, const Status& why, AggregationActions& actions);
  template <typename Predicate>
  void fail_rounds_if(Predicate predicate, const Status& why, AggregationActions& actions);
  std::string describe_wait(const WaitingList<KeyState*>::Wait& wait, TimeUs now) const;

  Children children_;
  std::unordered_map<Key, KeyState, KeyHash> keys_;  // never erased from: the list points into it
  WaitingList<KeyState*> gathering_;
  std::vector<Status> gone_;  // by child; ok: present
  std::vector<uint32_t> gone_children_;
  std::unordered_map<uint32_t, FailedTensor> failed_tensors_;  // by number
  Status failed_;
};

}  // namespace byteps::protocol
