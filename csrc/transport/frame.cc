#include "transport/frame.h"

#include <algorithm>
#include <array>
#include <string>

namespace byteps::transport {
namespace {

// A stream that lost its place is unlikely to show these, nor the zeros behind the head's length.
constexpr std::array<std::byte, 4> kMagic{std::byte{'B'}, std::byte{'P'}, std::byte{'F'}, std::byte{1}};

void put(uint64_t value, std::span<std::byte> out) {
  for (std::byte& byte : out) {
    byte = static_cast<std::byte>(value & 0xff);
    value >>= 8;
  }
}

uint64_t get(Bytes in) {
  uint64_t value = 0;
  for (size_t i = in.size(); i > 0; --i) value = value << 8 | std::to_integer<uint64_t>(in[i - 1]);
  return value;
}

Status bad_frame(const std::string& what, uint64_t got, uint64_t expected) {
  return data_loss("frame: " + what + ": got " + std::to_string(got) + ", expected at most " +
                   std::to_string(expected));
}

}  // namespace

void encode_prefix(const FramePrefix& prefix, std::span<std::byte, kFramePrefixBytes> out) {
  std::copy(kMagic.begin(), kMagic.end(), out.begin());
  put(prefix.head_bytes, out.subspan<4, 2>());
  put(0, out.subspan<6, 2>());
  put(prefix.payload_bytes, out.subspan<8, 8>());
}

Result<FramePrefix> decode_prefix(std::span<const std::byte, kFramePrefixBytes> in,
                                  const FrameLimits& limits) {
  if (!std::equal(kMagic.begin(), kMagic.end(), in.begin())) return data_loss("frame: no frame begins here");
  const uint64_t head_bytes = get(in.subspan<4, 2>());
  const uint64_t reserved = get(in.subspan<6, 2>());
  const uint64_t payload_bytes = get(in.subspan<8, 8>());
  if (head_bytes > limits.max_head_bytes) return bad_frame("head bytes", head_bytes, limits.max_head_bytes);
  if (reserved != 0) return bad_frame("reserved field", reserved, 0);
  if (payload_bytes > limits.max_payload_bytes) {
    return bad_frame("payload bytes", payload_bytes, limits.max_payload_bytes);
  }
  return FramePrefix{head_bytes, payload_bytes};
}

}  // namespace byteps::transport
