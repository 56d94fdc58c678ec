// The prefix of every frame on a stream. Layout: docs/wire-format.md, "Connections and frames".
//
// Pure. A frame on a stream consists of prefix (16 bytes), head and payload.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::transport {

inline constexpr size_t kFramePrefixBytes = 16;
// Largest head of a sender plus the bytes that a transport prepends to it (shm/buffer_leases.h).
inline constexpr size_t kMaxStreamHeadBytes = kMaxHeadBytes + 16;

// Limits of a receiver.
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

// Returns kDataLoss if the bytes are not a prefix or a length exceeds its limit.
Result<FramePrefix> decode_prefix(std::span<const std::byte, kFramePrefixBytes> in,
                                  const FrameLimits& limits);

}  // namespace byteps::transport
