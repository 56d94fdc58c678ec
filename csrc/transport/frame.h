// The bytes in front of every frame on a stream. Layout: docs/wire-format.md, "Connections and frames".
//
// Pure. A frame on a stream is: prefix (16 bytes), head, payload.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::transport {

inline constexpr size_t kFramePrefixBytes = 16;
// Of a sender's head and what a transport puts in front of it (shm/reference.h).
inline constexpr size_t kMaxStreamHeadBytes = kMaxHeadBytes + 16;

// What a receiver takes.
struct FrameLimits {
  size_t max_payload_bytes;
  size_t max_head_bytes = kMaxHeadBytes;  // at most kMaxStreamHeadBytes
};

struct FramePrefix {
  size_t head_bytes = 0;
  size_t payload_bytes = 0;
  bool operator==(const FramePrefix&) const = default;
};

void encode_prefix(const FramePrefix& prefix, std::span<std::byte, kFramePrefixBytes> out);

// kDataLoss: no frame begins here, or a length is above its limit.
Result<FramePrefix> decode_prefix(std::span<const std::byte, kFramePrefixBytes> in,
                                  const FrameLimits& limits);

}  // namespace byteps::transport
