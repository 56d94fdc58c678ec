#include "transport/shm/reference.h"

#include <string>

#include "base/numbers.h"

namespace byteps::transport {
namespace {

bool is_sound(const Reference& reference) {
  const bool lease = reference.lease != kNoLease;
  const bool data = reference.data_bytes > 0;
  const bool reply = reference.reply_bytes > 0;
  switch (reference.type) {
    case ReferenceType::kInline: return !data && !reply;
    case ReferenceType::kLent: return lease && (data || reply);
    case ReferenceType::kReturned: return lease && data && !reply;
    case ReferenceType::kGivenBack: return lease && !data && !reply;
    case ReferenceType::kStarving: return !lease && !data && !reply;
  }
  return false;
}

}  // namespace

void encode_reference(const Reference& reference, std::span<std::byte, kReferenceBytes> out) {
  store_number(&out[0], static_cast<uint32_t>(reference.type));
  store_number(&out[4], reference.lease);
  store_number(&out[8], reference.data_bytes);
  store_number(&out[12], reference.reply_bytes);
}

Result<Reference> decode_reference(Bytes in) {
  if (in.size() < kReferenceBytes) {
    return data_loss("shared memory: a frame's head of " + std::to_string(in.size()) + " bytes");
  }
  const auto type = load_number<uint32_t>(&in[0]);
  Reference reference{.lease = load_number<uint32_t>(&in[4]),
                      .data_bytes = load_number<uint32_t>(&in[8]),
                      .reply_bytes = load_number<uint32_t>(&in[12])};
  if (type <= 0xff) reference.type = static_cast<ReferenceType>(type);
  if (type > 0xff || !is_sound(reference)) {
    return data_loss("shared memory: an invalid reference: type " + std::to_string(type) + ", lease " +
                     std::to_string(reference.lease) + ", " + std::to_string(reference.data_bytes) + " and " +
                     std::to_string(reference.reply_bytes) + " bytes");
  }
  return reference;
}

}  // namespace byteps::transport
