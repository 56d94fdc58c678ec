#include "transport/shm/buffer_leases.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/copy.h"
#include "base/numbers.h"

namespace byteps::transport {
namespace {

static_assert(kLeaseUnitBytes == Slots::kAlignBytes);

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

size_t slot_bytes_for(const Payload& payload) {
  return std::max(payload.data.size(), payload.reply_space.size());
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

LeaseOwner::LeaseOwner(MutableBytes segment, MutableBytes arena)
    : memory_(segment),
      arena_offset_(arena.empty() ? 0 : static_cast<size_t>(arena.data() - segment.data())),
      arena_bytes_(arena.size()),
      slots_(arena.size()) {}

std::optional<LeaseId> LeaseOwner::place_of(const Payload& payload) const {
  const std::byte* const begin = payload.data.empty() ? payload.reply_space.data() : payload.data.data();
  const size_t bytes = slot_bytes_for(payload);
  if (bytes == 0 || begin < memory_.data() || begin + bytes > memory_.data() + memory_.size())
    return std::nullopt;
  const auto offset = static_cast<size_t>(begin - memory_.data());
  const bool answer_is_elsewhere = !payload.reply_space.empty() && payload.reply_space.data() != begin;
  const bool is_in_arena = offset >= arena_offset_ && offset < arena_offset_ + arena_bytes_;
  if (answer_is_elsewhere || is_in_arena || offset % kLeaseUnitBytes != 0) return std::nullopt;
  const LeaseId lease = lease_at(offset);
  return granted_.contains(lease) ? std::nullopt : std::optional(lease);
}

bool LeaseOwner::may_lease(const Payload& payload) const {
  const size_t bytes = slot_bytes_for(payload);
  if (bytes > 0 && bytes <= arena_bytes_ / kLeaseUnitBytes * kLeaseUnitBytes) return true;
  return place_of(payload).has_value();
}

std::optional<Reference> LeaseOwner::lease(const Payload& payload) {
  const size_t bytes = slot_bytes_for(payload);
  if (const auto place = place_of(payload)) {
    granted_[*place] = {0, payload.reply_space.size()};
    return Reference{ReferenceType::kLent, *place, static_cast<uint32_t>(payload.data.size()),
                     static_cast<uint32_t>(payload.reply_space.size())};
  }
  const bool may_wait = payload.is_answered_soon && bytes >= kLargePayloadBytes && granted_bytes_ > 0;
  if (may_wait && granted_bytes_ + bytes > std::max(kMostLeasedBytes, 2 * bytes)) return std::nullopt;
  const std::optional<size_t> offset = slots_.take(bytes);
  if (!offset) return std::nullopt;
  const MutableBytes slot = memory_.subspan(arena_offset_ + *offset);
  payload.is_cold ? copy_from_cold(slot, payload.data) : copy_bytes(slot, payload.data);
  const LeaseId lease = lease_at(arena_offset_ + *offset);
  granted_[lease] = {bytes, payload.reply_space.size()};
  granted_bytes_ += bytes;
  return Reference{ReferenceType::kLent, lease, static_cast<uint32_t>(payload.data.size()),
                   static_cast<uint32_t>(payload.reply_space.size())};
}

Result<Bytes> LeaseOwner::answer(const Reference& returned) const {
  const auto found = granted_.find(returned.lease);
  if (found == granted_.end() || returned.data_bytes > found->second.reply_bytes) {
    return data_loss("shared memory: an answer of " + std::to_string(returned.data_bytes) +
                     " bytes in lease " + std::to_string(returned.lease) +
                     ", which has less or no reply space");
  }
  return Bytes(memory_.subspan(offset_of(returned.lease), returned.data_bytes));
}

Status LeaseOwner::take_back(LeaseId lease) {
  const auto found = granted_.find(lease);
  if (found == granted_.end()) {
    return data_loss("shared memory: lease " + std::to_string(lease) + " was returned, but is not in use");
  }
  if (found->second.slot_bytes > 0)
    slots_.put_back(offset_of(lease) - arena_offset_, found->second.slot_bytes);
  granted_bytes_ -= found->second.slot_bytes;
  granted_.erase(found);
  return Status::ok();
}

Result<LeaseHolder::LeasedMemory> LeaseHolder::accept(const Reference& granted) {
  const size_t offset = offset_of(granted.lease);
  const size_t bytes = std::max(granted.data_bytes, granted.reply_bytes);
  if (offset > memory_.size() || bytes > memory_.size() - offset) {
    return data_loss("shared memory: a lease of " + std::to_string(bytes) + " bytes at " +
                     std::to_string(offset) + " of " + std::to_string(memory_.size()));
  }
  const MutableBytes reply_space = memory_.subspan(offset, granted.reply_bytes);
  if (!reply_spaces_.try_emplace(granted.lease, reply_space).second) {
    return data_loss("shared memory: lease " + std::to_string(granted.lease) + " is in use already");
  }
  return LeasedMemory{memory_.subspan(offset, granted.data_bytes), reply_space};
}

Reference LeaseHolder::return_lease(LeaseId lease, Bytes answer) {
  const auto found = reply_spaces_.find(lease);
  BPS_CHECK(found != reply_spaces_.end()) << "lease " << lease << " is not held";
  const MutableBytes reply_space = found->second;
  reply_spaces_.erase(found);
  const bool in_place = !answer.empty() && answer.data() == reply_space.data();
  BPS_CHECK(!in_place || answer.size() <= reply_space.size()) << "an answer larger than its reply space";
  if (!in_place) return {ReferenceType::kInline, lease};
  return {ReferenceType::kReturned, lease, static_cast<uint32_t>(answer.size())};
}

}  // namespace byteps::transport
