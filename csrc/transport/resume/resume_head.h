// What a connection of transport/resume adds to each frame's head. Pure.
//
//   offset size
//   0      1    kind
//   1      3    0
//   4      4    number of frames of kind kData received so far, modulo 2^32
//   8      8    kOpen: nonce of the session
//   16     8    kOpen: number of the session
//   24     8    kOpen: number of the oldest frame that the sender can send again, from 0
// kData: then the head of the frame itself.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/numbers.h"
#include "base/status.h"

namespace byteps::transport {

// Chosen by the end that connects.
struct SessionId {
  uint64_t nonce = 0;
  uint64_t number = 0;
  auto operator<=>(const SessionId&) const = default;
};

struct ResumeHead {
  enum class Kind : uint8_t {
    kData = 1,
    kOpen,     // connecting end, as the first frame: of a new session, or of one to be resumed
    kResumed,  // accepting end, in answer
    kUnknown,  // likewise: there is no such session any more
  };
  Kind kind = Kind::kData;
  uint32_t received = 0;
  // kOpen:
  SessionId session = {};
  uint64_t oldest = 0;
};

inline constexpr size_t kResumeHeadBytes = 8;
inline constexpr size_t kOpenHeadBytes = 32;

inline std::array<std::byte, kOpenHeadBytes> encode(const ResumeHead& head) {
  std::array<std::byte, kOpenHeadBytes> bytes{};
  bytes[0] = static_cast<std::byte>(head.kind);
  store_number(&bytes[4], head.received);
  store_number(&bytes[8], head.session.nonce);
  store_number(&bytes[16], head.session.number);
  store_number(&bytes[24], head.oldest);
  return bytes;
}

// Number of the bytes of encode() that a head of this kind has.
inline size_t head_bytes(ResumeHead::Kind kind) {
  return kind == ResumeHead::Kind::kOpen ? kOpenHeadBytes : kResumeHeadBytes;
}

// kDataLoss if `bytes` begins with no such head.
inline Result<ResumeHead> decode_resume_head(Bytes bytes) {
  const auto kind = bytes.empty() ? uint8_t{0} : load_number<uint8_t>(bytes.data());
  if (kind < 1 || kind > 4) return data_loss("frame: expected kind 1 to 4, got " + std::to_string(kind));
  ResumeHead head{.kind = static_cast<ResumeHead::Kind>(kind)};
  const size_t expected = head_bytes(head.kind);
  const bool is_data = head.kind == ResumeHead::Kind::kData;
  if (bytes.size() < expected || (!is_data && bytes.size() > expected)) {
    return data_loss("frame of kind " + std::to_string(kind) + ": expected a head of " +
                     std::to_string(expected) + " bytes, got " + std::to_string(bytes.size()));
  }
  head.received = load_number<uint32_t>(&bytes[4]);
  if (head.kind != ResumeHead::Kind::kOpen) return head;
  head.session = {load_number<uint64_t>(&bytes[8]), load_number<uint64_t>(&bytes[16])};
  head.oldest = load_number<uint64_t>(&bytes[24]);
  return head;
}

}  // namespace byteps::transport
