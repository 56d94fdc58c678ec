// What stands in front of the head of every shared-memory frame: where the payload is. Layout: docs/wire-format.md,
// "Shared memory".
//
// Pure. A loan's number says where it lies: it begins at byte (loan - 1) * kLoanUnitBytes of the segment.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::transport {

inline constexpr size_t kReferenceBytes = 16;
inline constexpr size_t kLoanUnitBytes = 64;

enum class ReferenceType : uint8_t {
  kInline = 1,     // the payload follows the head; may give `loan` back
  kLent = 2,       // lender only: `data_bytes` lie at `loan`, and room for an answer of `reply_bytes`
  kReturned = 3,   // borrower only: `data_bytes` lie at `loan`, which is given back when they were read
  kGivenBack = 4,  // borrower only, without head: `loan` is not needed any more
  kStarving = 5,   // lender only, without head: frames wait for room
};

struct Reference {
  ReferenceType type = ReferenceType::kInline;
  Loan loan = kNoLoan;
  uint32_t data_bytes = 0;
  uint32_t reply_bytes = 0;
  bool operator==(const Reference&) const = default;
};

void encode_reference(const Reference& reference, std::span<std::byte, kReferenceBytes> out);

// Of the frame that begins with `in`. kDataLoss: a field breaks a rule. Whether the loan exists is not known here.
Result<Reference> decode_reference(Bytes in);

constexpr Loan loan_at(size_t offset) { return static_cast<Loan>(offset / kLoanUnitBytes + 1); }
constexpr size_t offset_of(Loan loan) { return (size_t{loan} - 1) * kLoanUnitBytes; }

}  // namespace byteps::transport
