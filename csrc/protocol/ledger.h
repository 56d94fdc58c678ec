// What a member of an elastic job remembers of its push_pulls, so that no step is lost with a
// generation (protocol/coordinator_state.h). Pure.
//
// When a generation breaks off, some members may have the result of a push_pull, which their
// programs have used already, and others not. All must get the same one. So each member keeps the
// last result of each name until all members are known to have it. The members of the next
// generation exchange what they have (tables), and each computes the same from all tables
// (reconcile): who sends which result to whom, and which push_pulls have failed. What nobody has is
// summed again, as its inputs are intact.
//
// The same holds for parts. A part of a result, once there, stays as it is, and its inputs may be
// overwritten; a recovery gives it to all who lack it, and only the rest is summed again. So the parts
// of a large tensor may have been summed in different generations. They are the same on all members.
//
// Rounds count the push_pulls of a name since the epoch began, as in protocol/rounds.h. The rounds of
// the nodes below begin anew in each generation. They fit together nevertheless: after reconcile(),
// the next push_pull of a name is of the same round on all members.
//
// The caller owns the program's memory; results are shared memory that nobody changes while it is
// held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "protocol/byte_ranges.h"

namespace byteps::protocol {

// What a member knows of the push_pulls of one name.
struct LedgerEntry {
  std::string name;
  uint64_t last_call = 0;  // round of its last push_pull
  bool is_in_flight = false;
  // Last round of which it has the whole result, 0: none, and the result's size.
  uint64_t result_round = 0;
  uint64_t result_bytes = 0;
  struct Failure {
    uint64_t round = 0;
    StatusCode code = StatusCode::kUnavailable;
    std::string text;
    bool operator==(const Failure&) const = default;
  };
  std::vector<Failure> failures;  // ascending
  ByteRanges parts = {};          // that are there of the result of the one in flight
  bool operator==(const LedgerEntry&) const = default;
};
using LedgerTable = std::vector<LedgerEntry>;  // ordered by name

std::vector<std::byte> encode(const LedgerTable& table);
Result<LedgerTable> decode_ledger(Bytes bytes);

struct Reconciliation {
  // The rank `holder` sends this part of a result to the ranks `to`.
  struct Transfer {
    std::string name;
    uint64_t round = 0;
    ByteRange part;
    uint32_t holder = 0;
    std::vector<uint32_t> to;
    bool operator==(const Transfer&) const = default;
  };
  // The round, and all before it, have failed for all ranks that have no outcome of it yet, also for
  // those that come to it later.
  struct Failure {
    std::string name;
    uint64_t round = 0;
    Status why;
  };
  std::vector<Transfer> transfers;  // ordered by name, and by part
  std::vector<Failure> failures;    // likewise
};
// `tables`: by rank. The same on all ranks.
Reconciliation reconcile(const std::vector<LedgerTable>& tables);

class Ledger {
 public:
  using Values = std::shared_ptr<std::byte[]>;

  // A push_pull begins, and counts as a round. Its outcome if another member has it already
  // (reconcile), which is a failure; else finish() must follow. Precondition: none of the name is in
  // flight.
  std::optional<Status> start(const std::string& name, uint64_t step);
  // One ends at once: an adapter or a node has refused it. False: it has failed for all members
  // already (reconcile), so the node must not count it. Precondition: none of the name is in flight.
  bool refuse(const std::string& name, uint64_t step, const Status& why);
  // A part of the result of the one in flight is in its memory, to which nobody writes any more.
  void add_part(const std::string& name, const ByteRange& part);
  // The parts so far. After a recovery they are the same on all members that have it in flight.
  const ByteRanges& parts(const std::string& name) const;
  // The one in flight has this result, or has failed.
  void finish(const std::string& name, Values values, uint64_t bytes);
  void fail(const std::string& name, const Status& why);
  bool is_in_flight(const std::string& name) const;
  size_t in_flight() const { return in_flight_; }

  // Memory for the result of the push_pull in flight: that of the last result, if it has the same
  // size. It may be overwritten as soon as a part of the next one arrives, because then all members
  // have the last one.
  Values memory_for(const std::string& name, uint64_t bytes) const;
  // The result of this round, if it is held.
  Values held(const std::string& name, uint64_t round) const;
  // Position in the order of results; all results up to it can be released later.
  uint64_t mark() const { return last_order_; }
  // All members have the results up to this mark. Frees the memory of names that have had no new
  // result since the release before.
  void release(uint64_t mark);

  LedgerTable table() const;
  // What reconcile() has found out. Returns the names that were in flight and have failed, with the
  // reasons. Precondition: add_part() has been called for what others have sent.
  std::vector<std::pair<std::string, Status>> apply(const std::vector<Reconciliation::Failure>& failures);
  // A new epoch begins. Precondition: nothing is in flight.
  void clear();

 private:
  struct Name {
    uint64_t last_call = 0;
    bool is_in_flight = false;
    ByteRanges parts;
    uint64_t result_round = 0;
    uint64_t result_bytes = 0;
    uint64_t result_order = 0;
    bool is_held = false;  // the result; else its memory is only kept for the next one
    Values values;
    std::map<uint64_t, Status> failures;  // by round; also of rounds after the last call
  };
  void begin(Name& name, uint64_t step);
  void note_failure(Name& name, uint64_t round, const Status& why);
  // Why the last round of the name has failed already; nullopt: it has not.
  static std::optional<Status> failure_of(const std::string& name, const Name& known);

  std::unordered_map<std::string, Name> names_;
  size_t in_flight_ = 0;
  uint64_t last_order_ = 0;
};

}  // namespace byteps::protocol
