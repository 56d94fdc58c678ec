#include "transport/frame.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/numbers.h"

namespace byteps::transport {
namespace {

// If a stream gets out of sync, these bytes and the zeros after the head's length reveal it.
constexpr std::array<std::byte, 4> kMagic{std::byte{'B'}, std::byte{'P'}, std::byte{'F'}, std::byte{1}};

Status bad_frame(const std::string& what, uint64_t got, uint64_t expected) {
  return data_loss("frame: " + what + ": got " + std::to_string(got) + ", expected at most " +
                   std::to_string(expected));
}

}  // namespace

void encode_prefix(const FramePrefix& prefix, std::span<std::byte, kFramePrefixBytes> out) {
  std::copy(kMagic.begin(), kMagic.end(), out.begin());
  store_number(&out[4], static_cast<uint16_t>(prefix.head_bytes));
  store_number(&out[6], uint16_t{0});
  store_number(&out[8], uint64_t{prefix.payload_bytes});
}

Result<FramePrefix> decode_prefix(std::span<const std::byte, kFramePrefixBytes> in,
                                  const FrameLimits& limits) {
  if (!std::equal(kMagic.begin(), kMagic.end(), in.begin()))
    return data_loss("frame: expected the beginning of a frame, got other bytes");
  const uint64_t head_bytes = load_number<uint16_t>(&in[4]);
  const uint64_t reserved = load_number<uint16_t>(&in[6]);
  const uint64_t payload_bytes = load_number<uint64_t>(&in[8]);
  if (head_bytes > limits.max_head_bytes) return bad_frame("head bytes", head_bytes, limits.max_head_bytes);
  if (reserved != 0) return bad_frame("reserved field", reserved, 0);
  if (payload_bytes > limits.max_payload_bytes) {
    return bad_frame("payload bytes", payload_bytes, limits.max_payload_bytes);
  }
  return FramePrefix{head_bytes, payload_bytes};
}

}  // namespace byteps::transport
