#include "transport/shm/reference.h"

#include <string>

namespace byteps::transport {
namespace {

void put(uint32_t value, std::span<std::byte, 4> out) {
  for (size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> 8 * i & 0xff);
}

uint32_t get(Bytes in) {
  uint32_t value = 0;
  for (size_t i = 4; i > 0; --i) value = value << 8 | std::to_integer<uint32_t>(in[i - 1]);
  return value;
}

bool is_sound(const Reference& reference) {
  const bool loan = reference.loan != kNoLoan;
  const bool data = reference.data_bytes > 0;
  const bool reply = reference.reply_bytes > 0;
  switch (reference.type) {
    case ReferenceType::kInline: return !data && !reply;
    case ReferenceType::kLent: return loan && (data || reply);
    case ReferenceType::kReturned: return loan && data && !reply;
    case ReferenceType::kGivenBack: return loan && !data && !reply;
    case ReferenceType::kStarving: return !loan && !data && !reply;
  }
  return false;
}

}  // namespace

void encode_reference(const Reference& reference, std::span<std::byte, kReferenceBytes> out) {
  put(static_cast<uint32_t>(reference.type), out.subspan<0, 4>());
  put(reference.loan, out.subspan<4, 4>());
  put(reference.data_bytes, out.subspan<8, 4>());
  put(reference.reply_bytes, out.subspan<12, 4>());
}

Result<Reference> decode_reference(Bytes in) {
  if (in.size() < kReferenceBytes) {
    return data_loss("shared memory: a frame's head of " + std::to_string(in.size()) + " bytes");
  }
  const uint32_t type = get(in);
  Reference reference{
      .loan = get(in.subspan(4)), .data_bytes = get(in.subspan(8)), .reply_bytes = get(in.subspan(12))};
  if (type <= 0xff) reference.type = static_cast<ReferenceType>(type);
  if (type > 0xff || !is_sound(reference)) {
    return data_loss("shared memory: no reference: type " + std::to_string(type) + ", loan " +
                     std::to_string(reference.loan) + ", " + std::to_string(reference.data_bytes) + " and " +
                     std::to_string(reference.reply_bytes) + " bytes");
  }
  return reference;
}

}  // namespace byteps::transport
