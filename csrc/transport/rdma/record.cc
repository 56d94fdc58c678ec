#include "transport/rdma/record.h"

#include <string>

#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {
namespace {

static_assert(units_of(kMaxRecordBytes) <= kRingUnits / 2);

template <typename T>
void put(T value, std::byte* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> 8 * i & 0xff);
}

template <typename T>
T get(const std::byte* in) {
  T value = 0;
  for (size_t i = sizeof(T); i > 0; --i) value = static_cast<T>(value << 8 | std::to_integer<T>(in[i - 1]));
  return value;
}

// Whether the fields are those that a record of its type has.
bool is_sound(const Record& record) {
  const bool loan = record.loan != kNoLoan;
  const bool gives_back = record.gives_back != kNoLoan;
  const bool payload = record.payload_bytes > 0;
  const bool inline_payload = record.inline_bytes > 0;
  const bool head = record.head_bytes > 0;
  const bool reply = record.reply_bytes > 0;
  const bool target = record.address != 0;
  const bool plain = !head && !inline_payload && !reply;
  switch (record.type) {
    case RecordType::kFrame:
      return reply == target && reply == loan && inline_payload == payload &&
             record.inline_bytes <= record.payload_bytes;
    case RecordType::kMore: return inline_payload && !head && !payload && !loan && !gives_back && !reply;
    case RecordType::kPlaced: return loan && payload && !inline_payload && reply == target;
    case RecordType::kAnswered: return gives_back && payload && !inline_payload && !loan && !reply;
    case RecordType::kReserve: return plain && loan && payload && !gives_back;
    case RecordType::kReserved: return plain && loan && !payload && !gives_back;
    case RecordType::kRelease: return plain && loan && !payload && !gives_back;
    case RecordType::kGiveBack: return plain && !loan && !payload && gives_back;
    case RecordType::kEnd: return plain && !loan && !payload && !gives_back;
  }
  return false;
}

}  // namespace

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> out) {
  put(static_cast<uint16_t>(record.type), &out[0]);
  put(record.head_bytes, &out[2]);
  put(record.consumed, &out[4]);
  put(record.loan, &out[8]);
  put(record.gives_back, &out[12]);
  put(record.payload_bytes, &out[16]);
  put(record.inline_bytes, &out[24]);
  put(record.key, &out[28]);
  put(record.address, &out[32]);
  put(record.reply_bytes, &out[40]);
}

Result<Record> decode_record(Bytes in, uint64_t max_payload_bytes) {
  if (in.size() < kRecordBytes) return data_loss("RDMA: a record of " + std::to_string(in.size()) + " bytes");
  const auto type = get<uint16_t>(&in[0]);
  const Record record{.type = static_cast<RecordType>(type & 0xff),
                      .head_bytes = get<uint16_t>(&in[2]),
                      .consumed = get<uint32_t>(&in[4]),
                      .loan = get<uint32_t>(&in[8]),
                      .gives_back = get<uint32_t>(&in[12]),
                      .payload_bytes = get<uint64_t>(&in[16]),
                      .inline_bytes = get<uint32_t>(&in[24]),
                      .address = get<uint64_t>(&in[32]),
                      .key = get<uint32_t>(&in[28]),
                      .reply_bytes = get<uint64_t>(&in[40])};
  const auto wrong = [&](const char* what) {
    return data_loss(std::string("RDMA: no record: ") + what + ": type " + std::to_string(type) + ", head " +
                     std::to_string(record.head_bytes) + ", payload " + std::to_string(record.inline_bytes) +
                     " of " + std::to_string(record.payload_bytes) + " bytes, loans " +
                     std::to_string(record.loan) + " and " + std::to_string(record.gives_back));
  };
  if (type > 0xff || record.consumed > kCountMask || !is_sound(record))
    return wrong("fields that do not fit together");
  if (record.head_bytes > kMaxHeadBytes || record.inline_bytes > kEagerBytes ||
      kRecordBytes + record.head_bytes + record.inline_bytes > in.size()) {
    return wrong("longer than it may be");
  }
  if (record.payload_bytes > max_payload_bytes || record.reply_bytes > max_payload_bytes) {
    return wrong("a payload that is too large");
  }
  return record;
}

uint32_t consumed_of(Bytes in) { return get<uint32_t>(&in[4]); }

}  // namespace byteps::transport::rdma
