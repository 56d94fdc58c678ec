// Stored tensors whose root is lost, at the root's successor. Pure.
//
// Every answer about a stored tensor is its value at that time, and says which rounds of each rank
// are in it (StalenessTracker::included). Each rank holds the last answer that it has got. Values
// only grow, so the newest of those that the ranks hold contains every contribution that was ever
// answered. The successor fetches it, and goes on from there: what it contains is answered again,
// the rest is added.
//
// The newest one is known when all ranks have said what they hold (kHolds). A rank that holds
// nothing, and perhaps never uses the tensor, does not say so for each tensor: after the loss of a
// server it says what it holds, to whom it concerns, and then to all services that it has said all
// (kStated, with the number of losses so far), and only then passes on its contributions. So a
// contribution waits here until every rank has stated as many losses as any rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "protocol/aggregation.h"
#include "protocol/message.h"
#include "protocol/waiting_list.h"

namespace byteps::protocol {

class StoredTakeover {
 public:
  // Nobody has a value: these contributions, ordered by rank, are the first ones.
  struct BeginAnew {
    std::vector<DataHead> waiting;
  };
  // The value is lost: these contributions fail.
  struct Lose {
    std::vector<DataHead> waiting;
    Status why;
  };
  using Action = std::variant<Fetch, BeginAnew, Lose, Stalled>;
  using Actions = std::vector<Action>;
  using Rounds = std::vector<uint64_t>;  // StalenessTracker::included

  // The limits are those of every push_pull. After the timeout the value counts as lost.
  StoredTakeover(size_t num_ranks, WaitLimits limits) : stated_(num_ranks), waits_(limits) {}

  // Whether the contribution waits for the value: it goes to on_contribution().
  bool is_pending(const DataHead& head) const {
    return head.type == DataType::kMoved && !settled_.contains(head.key);
  }
  // Precondition: is_pending(), and none of the rank waits().
  void on_contribution(const DataHead& head, TimeUs now, Actions& actions);
  bool waits(const Key& key, uint32_t rank) const;
  // `head.rank` holds the answer to its round `head.round`, which contains `rounds`.
  void on_holds(const DataHead& head, Rounds rounds);
  void on_stated(uint32_t rank, uint64_t losses, Actions& actions);
  // The rank has left in order: it holds nothing any more.
  void on_rank_gone(uint32_t rank, Actions& actions);
  void restart_waits(TimeUs now) { waits_.restart(now); }
  void on_tick(TimeUs now, Actions& actions);
  TimeUs next_tick_us() const { return waits_.next_us(); }

  // Whether the value that `head` describes was fetched.
  bool expects(const DataHead& head) const;
  // The value has come: nothing waits for it any more. Precondition: expects().
  struct Restored {
    Rounds rounds;
    std::vector<DataHead> waiting;  // ordered by rank; empty if all have failed meanwhile
  };
  Restored take(const Key& key);
  // Takes all contributions that wait, of the tensor of this number or of all tensors.
  std::vector<DataHead> take_waiting(std::optional<uint64_t> number = std::nullopt);

 private:
  using Waits = WaitingList<Key>;
  struct Pending {
    std::map<uint32_t, DataHead> waiting;  // by rank
    Waits::Iterator wait;                  // of the first of them, if there are any
    // The newest value; if `rounds` is empty: nobody holds one.
    DataHead head;
    Rounds rounds;
    bool is_fetched = false;
    Status lost;  // not ok: why the newest value is lost
  };

  uint64_t most_stated() const;
  bool all_have_stated() const;
  void settle(const Key& key, Pending& pending, Actions& actions);
  void settle_all(Actions& actions);
  void lose(Pending& pending, Actions& actions);
  std::vector<DataHead> take_waiting(Pending& pending);
  std::string describe_wait(const Waits::Wait& wait, TimeUs now) const;

  std::vector<uint64_t> stated_;  // by rank; kGone: it has left
  std::map<Key, Pending> pending_;
  Waits waits_;
  std::unordered_set<Key, KeyHash> settled_;
};

}  // namespace byteps::protocol
