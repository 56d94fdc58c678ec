#include "transport/rdma/loans.h"

namespace byteps::transport::rdma {

Loan Loans::next() {
  do {
    ++last_;
  } while (last_ == kNoLoan || landings_.contains(last_) || lent_.contains(last_));
  return last_;
}

Loan Loans::reserve(uint64_t place, uint64_t bytes) {
  if (const Loan known = find_free(place, bytes); known != kNoLoan) return known;
  const Loan loan = next();
  landings_[loan] = {.capacity_bytes = bytes, .place = place, .busy = true, .answered = false, .target = {}};
  if (place != 0) places_[place] = loan;
  controls_.push_back({.type = RecordType::kReserve, .loan = loan, .payload_bytes = bytes});
  return loan;
}

Loan Loans::find_free(uint64_t& place, uint64_t bytes) {
  const auto known = places_.find(place);
  if (known == places_.end()) return kNoLoan;
  const Loan loan = known->second;
  Landing& landing = landings_.at(loan);
  if (landing.busy) {
    place = 0;  // against the rule of places; it gets memory of its own
    return kNoLoan;
  }
  if (landing.capacity_bytes < bytes) {
    release(loan);
    return kNoLoan;
  }
  landing.busy = true;
  return loan;
}

Status Loans::on_reserved(const Record& reserved) {
  const auto landing = landings_.find(reserved.loan);
  if (landing == landings_.end() || landing->second.answered) {
    return data_loss(peer_ + ": memory for " + std::to_string(reserved.loan) + ", which was not asked for");
  }
  landing->second.answered = true;
  landing->second.target = {reserved.address, reserved.key, landing->second.capacity_bytes};
  return Status::ok();
}

void Loans::release(Loan loan) {
  const auto landing = landings_.find(loan);
  if (landing->second.place != 0) places_.erase(landing->second.place);
  if (landing->second.target.address != 0) {
    controls_.push_back({.type = RecordType::kRelease, .loan = loan});
  }
  landings_.erase(landing);
}

Result<MutableBytes> Loans::reply_space(Loan loan, uint64_t bytes) const {
  const auto lent = lent_.find(loan);
  if (lent == lent_.end() || bytes > lent->second.reply_space.size() || !lent->second.lease) {
    return data_loss(peer_ + ": an answer of " + std::to_string(bytes) + " bytes in loan " +
                     std::to_string(loan) + ", which has no such room");
  }
  return lent->second.reply_space.first(bytes);
}

Status Loans::take_back(Loan loan) {
  if (lent_.erase(loan) == 0) {
    return data_loss(peer_ + ": loan " + std::to_string(loan) + " was given back, but is not out");
  }
  const auto landing = landings_.find(loan);
  if (landing == landings_.end()) return Status::ok();
  landing->second.busy = false;
  if (landing->second.place == 0) release(loan);
  return Status::ok();
}

void Loans::clear() {
  landings_.clear();
  places_.clear();
  lent_.clear();
}

}  // namespace byteps::transport::rdma
