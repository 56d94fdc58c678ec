// Outcomes of rounds whose root may be lost, held until every rank is known to have them.
//
// When a root is lost after it has answered some ranks, the others get the result from those
// (protocol/takeover.h). So results of roots on servers arrive in memory of their own, are copied
// into the tensor when complete, and stay here until the result of the key's next round begins to
// arrive: by then every child has contributed to that round, so it has this one's result.
//
// A result of a name that is not used again is released earlier, when the root has said that every
// child has it (protocol/answer_marks.h). Its head stays: it tells a successor where the rounds of
// the key are.
//
// Of a stored tensor (protocol/stored_takeover.h) the last answer is held, and what it contains,
// until the next one has arrived.
//
// Thread-safe. Memory: one result of each partition whose root is on a server, two if it is stored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/annotations.h"
#include "base/bytes.h"
#include "protocol/message.h"

namespace byteps::worker {

class Link;

class HeldResults {
 public:
  using Values = std::shared_ptr<std::byte[]>;
  using Rounds = std::shared_ptr<const std::vector<std::byte>>;  // payload of a kIncluded
  struct Held {
    protocol::DataHead head;   // of the answer: kResult or kFailed
    Values values;             // head.bytes; null for a failure, and if released
    std::string text;          // of a failure
    Rounds rounds = nullptr;   // of a stored tensor: what the values contain
    const Link* at = nullptr;  // the link whose service answered, or has been told of it since
    uint64_t order = 0;        // set by keep(); UINT64_MAX: `at` did not answer
  };

  // Memory for the next result of the key: that of the last one, if it has the same size and nobody
  // sends it. `is_stored`: that of the one before, as the last one is still needed.
  Values memory_for(const protocol::Key& key, uint64_t bytes, bool is_stored = false);
  // Replaces the key's last result. A failure replaces only the last failure.
  void keep(Held held);
  // A result of the key has come from a root that cannot be lost.
  void drop(const protocol::Key& key);
  // Whether nobody can need an outcome of this node.
  bool is_empty() const;
  // The number of outcomes that were kept so far.
  uint64_t last_order() const;
  // Every child has what this link's service had answered when last_order() was `order`.
  void release(const Link* link, uint64_t order);
  // What all ranks have forgotten.
  void forget(const std::vector<protocol::ForgottenKeys>& keys);
  std::optional<Held> find(const protocol::Key& key, uint64_t round) const;
  // The heads of what was answered at this link, ordered by key and round.
  std::vector<protocol::DataHead> at(const Link* link) const;
  // Another service has been told of it.
  void move(const protocol::Key& key, uint64_t round, const Link* to);

 private:
  struct Outcomes {
    std::optional<Held> result;
    std::optional<Held> failure;
    Held before;  // of a stored tensor: its memory is free, unless it is being sent
  };

  mutable Mutex mutex_;
  uint64_t last_order_ BPS_GUARDED_BY(mutex_) = 0;
  std::unordered_map<protocol::Key, Outcomes, protocol::KeyHash> held_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::worker
