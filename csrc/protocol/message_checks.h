// Checks that data and control messages share. Pure; kDataLoss where the bytes are wrong.
#pragma once

#include <iterator>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "protocol/message.h"

namespace byteps::protocol {

inline Result<StatusCode> status_code_from(uint8_t value) {
  constexpr size_t kLast = std::size(kErrors);
  if (value > kLast) {
    return data_loss("status: expected a code from 0 to " + std::to_string(kLast) + ", got " +
                     std::to_string(value));
  }
  return static_cast<StatusCode>(value);
}

inline Status check_version(uint8_t version) {
  if (version == kProtocolVersion) return Status::ok();
  return data_loss("message: expected protocol version " + std::to_string(kProtocolVersion) + ", got " +
                   std::to_string(version));
}

inline Status check_head_size(Bytes head, size_t expected_bytes) {
  if (head.size() == expected_bytes) return Status::ok();
  return data_loss("message: expected a head of " + std::to_string(expected_bytes) + " bytes, got " +
                   std::to_string(head.size()));
}
}  // namespace byteps::protocol
