// What one end of an RDMA connection has agreed with the other about memory: the landings that it has there, and what it
// has lent of its own for answers. Pure: numbers and records; the other end's view is in incoming.h.
//
// Every landing and everything lent has a number, a loan, of this end. A frame that goes to a landing lends its reply
// space, if it has one, under the landing's number.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>

#include "transport/rdma/record.h"
#include "transport/rdma/registrations.h"

namespace byteps::transport::rdma {

// Memory of the other end. `bytes` 0: none.
struct Target {
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;
};

// What the other end may write its answer to. `lease`: none where it may not.
struct Lent {
  MutableBytes reply_space;
  Registrations::Lease lease;
};

class Loans {
 public:
  // `controls`: gets what the other end has to be told. `peer`: for messages.
  Loans(std::deque<Record>& controls, std::string peer) : controls_(controls), peer_(std::move(peer)) {}

  // A number that is not in use.
  Loan next();

  // A landing for one frame of so many bytes: the one of that place (Payload::place), if it is large enough and not in
  // use; else the other end is asked for one.
  Loan reserve(uint64_t place, uint64_t bytes);
  // Whether the other end has answered. kDataLoss: it was not asked.
  Status on_reserved(const Record& reserved);
  bool is_answered(Loan landing) const { return landings_.at(landing).answered; }
  // Of one that is answered; address 0: the other end has no memory for it.
  const Target& target(Loan landing) const { return landings_.at(landing).target; }
  // Nothing is written there any more, and nothing in it is needed.
  void release(Loan landing);

  // From now on the other end may use this number: the frame of that landing, or of a number of its own, is posted.
  void lend(Loan loan, Lent lent) { lent_[loan] = std::move(lent); }
  // Where its answer of so many bytes lies. kDataLoss: there is no such room.
  Result<MutableBytes> reply_space(Loan loan, uint64_t bytes) const;
  // The other end gives it back. kDataLoss: it has no such loan.
  Status take_back(Loan loan);
  void clear();

 private:
  struct Landing {
    uint64_t capacity_bytes = 0;
    uint64_t place = 0;  // 0: for one frame
    bool busy = true;
    bool answered = false;
    Target target;
  };

  // The landing of that place that may be used now, or none.
  Loan find_free(uint64_t& place, uint64_t bytes);

  std::deque<Record>& controls_;
  const std::string peer_;
  Loan last_ = kNoLoan;
  std::unordered_map<Loan, Landing> landings_;
  std::unordered_map<uint64_t, Loan> places_;
  std::unordered_map<Loan, Lent> lent_;
};

}  // namespace byteps::transport::rdma
