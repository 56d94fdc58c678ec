#include "transport/rdma/ring.h"

#include <string>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

static_assert(units_of(kMaxRecordBytes) <= kRingUnits / 2);
static_assert((kCountMask + 1) % kRingUnits == 0);  // a count that wraps is still a position

// The count of units before a record of `units` that follows `total` units. Those at the end of the
// ring are skipped if the record does not fit there.
uint32_t begin_of(uint32_t total, uint32_t units) {
  const uint32_t left = kRingUnits - total % kRingUnits;
  return units <= left ? total : total + left;
}

// Whether the fields are valid for a record of its type.
bool is_sound(const Record& record) {
  const bool lease = record.lease != kNoLease;
  const bool returns_lease = record.returns_lease != kNoLease;
  const bool payload = record.payload_bytes > 0;
  const bool inline_payload = record.inline_bytes > 0;
  const bool head = record.head_bytes > 0;
  const bool reply = record.reply_bytes > 0;
  const bool target = record.address != 0;
  const bool plain = !head && !inline_payload && !reply;
  switch (record.type) {
    case RecordType::kFrame:
      return reply == target && reply == lease && inline_payload == payload &&
             record.inline_bytes <= record.payload_bytes;
    case RecordType::kMore: return inline_payload && !head && !payload && !lease && !returns_lease && !reply;
    case RecordType::kPlaced: return lease && payload && !inline_payload && reply == target;
    case RecordType::kAnswered: return returns_lease && payload && !inline_payload && !lease && !reply;
    case RecordType::kReserve: return plain && lease && payload && !returns_lease;
    case RecordType::kReserved: return plain && lease && !payload && !returns_lease;
    case RecordType::kRelease: return plain && lease && !payload && !returns_lease;
    case RecordType::kGiveBack: return plain && !lease && !payload && returns_lease;
    case RecordType::kEnd: return plain && !lease && !payload && !returns_lease;
  }
  return false;
}

}  // namespace

std::optional<uint32_t> RingWriter::allocate(uint32_t units) {
  const uint32_t begin = begin_of(sent_, units);
  if (((begin + units - consumed_) & kCountMask) > kRingUnits) return std::nullopt;
  sent_ = (begin + units) & kCountMask;
  return begin % kRingUnits;
}

Status RingWriter::on_consumed(uint32_t total) {
  const uint32_t more = (total - consumed_) & kCountMask;
  if (more > outstanding()) {
    return data_loss("RDMA: the other end has consumed " + std::to_string(more) + " units of " +
                     std::to_string(outstanding()) + " that were sent");
  }
  consumed_ = total & kCountMask;
  return Status::ok();
}

Result<RingReader::Extent> RingReader::next(uint32_t units) {
  if (units == 0 || units > kRingUnits / 2) {
    return data_loss("RDMA: a record of " + std::to_string(units) + " units: expected 1 to " +
                     std::to_string(kRingUnits / 2));
  }
  const uint32_t begin = begin_of(read_, units);
  read_ = (begin + units) & kCountMask;
  return Extent{begin % kRingUnits, units, read_};
}

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> out) {
  store_number(&out[0], static_cast<uint16_t>(record.type));
  store_number(&out[2], record.head_bytes);
  store_number(&out[4], record.consumed);
  store_number(&out[8], record.lease);
  store_number(&out[12], record.returns_lease);
  store_number(&out[16], record.payload_bytes);
  store_number(&out[24], record.inline_bytes);
  store_number(&out[28], record.key);
  store_number(&out[32], record.address);
  store_number(&out[40], record.reply_bytes);
}

Result<Record> decode_record(Bytes in, uint64_t max_payload_bytes) {
  if (in.size() < kRecordBytes) return data_loss("RDMA: a record of " + std::to_string(in.size()) + " bytes");
  const auto type = load_number<uint16_t>(&in[0]);
  const Record record{.type = static_cast<RecordType>(type & 0xff),
                      .head_bytes = load_number<uint16_t>(&in[2]),
                      .consumed = load_number<uint32_t>(&in[4]),
                      .lease = load_number<uint32_t>(&in[8]),
                      .returns_lease = load_number<uint32_t>(&in[12]),
                      .payload_bytes = load_number<uint64_t>(&in[16]),
                      .inline_bytes = load_number<uint32_t>(&in[24]),
                      .address = load_number<uint64_t>(&in[32]),
                      .key = load_number<uint32_t>(&in[28]),
                      .reply_bytes = load_number<uint64_t>(&in[40])};
  const auto wrong = [&](const char* what) {
    return data_loss(std::string("RDMA: an invalid record: ") + what + ": type " + std::to_string(type) +
                     ", head " + std::to_string(record.head_bytes) + ", payload " +
                     std::to_string(record.inline_bytes) + " of " + std::to_string(record.payload_bytes) +
                     " bytes, leases " + std::to_string(record.lease) + " and " +
                     std::to_string(record.returns_lease));
  };
  if (type > 0xff || record.consumed > kCountMask || !is_sound(record))
    return wrong("fields that do not fit together");
  if (record.head_bytes > kMaxHeadBytes || record.inline_bytes > kEagerBytes ||
      kRecordBytes + record.head_bytes + record.inline_bytes > in.size()) {
    return wrong("its length exceeds its space");
  }
  if (record.payload_bytes > max_payload_bytes || record.reply_bytes > max_payload_bytes) {
    return wrong("a payload that is too large");
  }
  return record;
}

uint32_t consumed_of(Bytes in) { return load_number<uint32_t>(&in[4]); }

}  // namespace byteps::transport::rdma
