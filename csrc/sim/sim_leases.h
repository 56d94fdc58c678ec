// The leases of a simulated connection between two processes of one machine.
//
// As in transport/shm, the connecting end lends memory of one arena, the accepting end holds it,
// and a payload and its answer begin at the same address. Unlike there, every lease is a heap block
// of its own, which is quarantined at its return, and lease numbers are never used again.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "sim/sim_network.h"
#include "transport/slots.h"
#include "transport/transport.h"

namespace byteps::sim {

class SimLeases {
 public:
  // Memory of a lease, as its holder sees it.
  struct Leased {
    Bytes data;
    MutableBytes reply_space;
  };
  struct Returned {
    transport::LeaseId lease = transport::kNoLease;  // kNoLease: was not held
    std::optional<LentBlock> answer;                 // set if the answer was in the leased memory
  };

  // `arena_bytes`: size of the arena. `name`: of the connection, for messages.
  SimLeases(SimNetwork& network, size_t arena_bytes, std::string name);
  ~SimLeases() { revoke(); }
  SimLeases(const SimLeases&) = delete;

  // The lending end.

  // Whether the payload or its answer can be leased at all.
  bool may_lend(const transport::Payload& payload) const;
  // Copies the payload. Returns kNoLease if there is no room now.
  transport::LeaseId lend(const transport::Payload& payload);
  // The return of the lease has arrived: its room is free.
  void take_back(transport::LeaseId lease);

  // The holding end.

  Leased leased(transport::LeaseId lease) const;
  // Returns the lease with `answer` (may be empty) and quarantines its memory. Reports a violation
  // if the lease is not held, or if the answer is in its memory but not in its reply space.
  Returned give_back(transport::LeaseId lease, Bytes answer);
  // Quarantines the memory of all held leases, as this end is closed. They may still be returned.
  void revoke();

  // Quarantines the memory of an answer, which was in `lease`.
  void retire(transport::LeaseId lease, LentBlock block);

 private:
  struct Room {
    size_t offset;
    size_t bytes;
  };
  struct Held {
    size_t data_bytes;
    size_t reply_bytes;
    std::optional<LentBlock> block;  // empty after revoke()
  };
  std::optional<LentBlock> copy_of_answer(const std::string& name, const Held& held, Bytes answer);
  std::string name_of(transport::LeaseId lease) const;

  SimNetwork& network_;
  const size_t arena_bytes_;
  const std::string name_;
  transport::Slots slots_;
  transport::LeaseId last_lease_ = transport::kNoLease;
  std::map<transport::LeaseId, Room> lent_;
  std::map<transport::LeaseId, Held> held_;  // includes leases that have not arrived yet
};

}  // namespace byteps::sim
