#include "transport/shm/loans.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/copy.h"

namespace byteps::transport {
namespace {

static_assert(kLoanUnitBytes == Slots::kAlignBytes);

size_t slot_bytes_for(const Payload& payload) {
  return std::max(payload.data.size(), payload.reply_space.size());
}

}  // namespace

Lender::Lender(MutableBytes memory) : memory_(memory), slots_(memory.size()) {}

bool Lender::may_lend(const Payload& payload) const {
  const size_t bytes = slot_bytes_for(payload);
  return bytes > 0 && bytes <= memory_.size() / kLoanUnitBytes * kLoanUnitBytes;
}

std::optional<Reference> Lender::lend(const Payload& payload) {
  const size_t bytes = slot_bytes_for(payload);
  const std::optional<size_t> offset = slots_.take(bytes);
  if (!offset) return std::nullopt;
  copy_bytes(memory_.subspan(*offset), payload.data);
  const Loan loan = loan_at(*offset);
  lent_[loan] = {bytes, payload.reply_space.size()};
  return Reference{ReferenceType::kLent, loan, static_cast<uint32_t>(payload.data.size()),
                   static_cast<uint32_t>(payload.reply_space.size())};
}

Result<Bytes> Lender::answer(const Reference& returned) const {
  const auto found = lent_.find(returned.loan);
  if (found == lent_.end() || returned.data_bytes > found->second.reply_bytes) {
    return data_loss("shared memory: an answer of " + std::to_string(returned.data_bytes) +
                     " bytes in loan " + std::to_string(returned.loan) + ", which has no such room");
  }
  return Bytes(memory_.subspan(offset_of(returned.loan), returned.data_bytes));
}

Status Lender::take_back(Loan loan) {
  const auto found = lent_.find(loan);
  if (found == lent_.end()) {
    return data_loss("shared memory: loan " + std::to_string(loan) + " was given back, but is not out");
  }
  slots_.put_back(offset_of(loan), found->second.slot_bytes);
  lent_.erase(found);
  return Status::ok();
}

Result<Borrower::Borrowed> Borrower::borrow(const Reference& lent) {
  const size_t offset = offset_of(lent.loan);
  const size_t bytes = std::max(lent.data_bytes, lent.reply_bytes);
  if (offset > memory_.size() || bytes > memory_.size() - offset) {
    return data_loss("shared memory: a loan of " + std::to_string(bytes) + " bytes at " +
                     std::to_string(offset) + " of " + std::to_string(memory_.size()));
  }
  const MutableBytes reply_space = memory_.subspan(offset, lent.reply_bytes);
  if (!reply_spaces_.try_emplace(lent.loan, reply_space).second) {
    return data_loss("shared memory: loan " + std::to_string(lent.loan) + " is lent already");
  }
  return Borrowed{memory_.subspan(offset, lent.data_bytes), reply_space};
}

Reference Borrower::give_back(Loan loan, Bytes answer) {
  const auto found = reply_spaces_.find(loan);
  BPS_CHECK(found != reply_spaces_.end()) << "loan " << loan << " is not out";
  const MutableBytes reply_space = found->second;
  reply_spaces_.erase(found);
  const bool in_place = !answer.empty() && answer.data() == reply_space.data();
  BPS_CHECK(!in_place || answer.size() <= reply_space.size()) << "an answer beyond its reply space";
  if (!in_place) return {ReferenceType::kInline, loan};
  return {ReferenceType::kReturned, loan, static_cast<uint32_t>(answer.size())};
}

}  // namespace byteps::transport
