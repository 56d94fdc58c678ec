// Encoding of message fields as bytes. ByteWriter and ByteReader have the same methods, so one list
// of fields (control_message.cc) serves both directions. Integers are little endian. Pure.
//
// The reader never accesses memory outside its argument and checks each limit before it allocates.
// Its first error is kept; fields after it keep their values. The writer does not check limits but
// truncates texts: the reader refuses a value that exceeds another limit.
//
// At the end: checks that data and control messages share; kDataLoss where the bytes are wrong.
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/numbers.h"
#include "base/status.h"
#include "protocol/message.h"

namespace byteps::protocol {

// The first `max_bytes` of `text`, or slightly fewer so as not to split a UTF-8 character.
inline std::string_view truncate_text(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <std::integral T>
  void number(const char* /*field*/, T value, std::type_identity_t<T> /*least*/ = 0,
              std::type_identity_t<T> /*most*/ = 0) {
    out_.resize(out_.size() + sizeof(T));
    store_number(&out_[out_.size() - sizeof(T)], value);
  }
  void flag(const char* field, bool value) { number(field, static_cast<uint8_t>(value)); }
  template <typename Enum>
  void enumeration(const char* field, Enum value, Result<Enum> (* /*from*/)(uint8_t)) {
    number(field, static_cast<uint8_t>(value));
  }
  void plan(const char* field, const Plan& value) {
    number(field, encode(value));
    number(field, value.placement);
  }
  void text(const char* field, const std::string& value, uint16_t max_bytes) {
    std::string_view truncated = truncate_text(value, max_bytes);
    number(field, static_cast<uint16_t>(truncated.size()));
    Bytes bytes = as_bytes(truncated);
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void blob(const char* field, const std::vector<std::byte>& value, size_t /*max_bytes*/) {
    number(field, static_cast<uint32_t>(value.size()));
    out_.insert(out_.end(), value.begin(), value.end());
  }
  template <typename T, typename Each>
  void list(const char* field, const std::vector<T>& items, uint32_t /*max_count*/, size_t /*least_bytes*/,
            Each each) {
    number(field, static_cast<uint32_t>(items.size()));
    for (const T& item : items) each(*this, item);
  }
  void require(bool /*holds*/, const char* /*rule*/) {}

 private:
  std::vector<std::byte>& out_;
};

class ByteReader {
 public:
  // `what` names the message in errors; it must outlive the reader.
  ByteReader(Bytes bytes, const char* what) : rest_(bytes), what_(what) {}

  // Accepts values from `least` to `most`.
  template <std::integral T>
  void number(const char* field, T& value, std::type_identity_t<T> least = std::numeric_limits<T>::min(),
              std::type_identity_t<T> most = std::numeric_limits<T>::max()) {
    if (!available(field, sizeof(T))) return;
    T read = load_number<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    if (read < least || read > most) {
      return fail(std::string(field) + ": expected " + std::to_string(least) + " to " + std::to_string(most) +
                  ", got " + std::to_string(read));
    }
    value = read;
  }
  void flag(const char* field, bool& value) {
    uint8_t read = 0;
    number(field, read, 0, 1);
    value = read != 0;
  }
  template <typename Enum>
  void enumeration(const char* field, Enum& value, Result<Enum> (*from)(uint8_t)) {
    uint8_t code = 0;
    number(field, code);
    if (!status_.is_ok()) return;
    Result<Enum> read = from(code);
    if (!read) return fail(read.status().message());
    value = *read;
  }
  void plan(const char* field, Plan& value) {
    uint8_t byte = 0;
    number(field, byte);
    const Result<Plan> read = plan_from(byte);
    if (!read) return fail(read.status().message());
    value = *read;
    number(field, value.placement);
  }
  void text(const char* field, std::string& value, uint16_t max_bytes) {
    uint16_t size = 0;
    number(field, size, 0, max_bytes);
    if (!available(field, size)) return;
    value = as_text(rest_.first(size));
    rest_ = rest_.subspan(size);
  }
  void blob(const char* field, std::vector<std::byte>& value, size_t max_bytes) {
    uint32_t size = 0;
    number(field, size, 0, static_cast<uint32_t>(max_bytes));
    if (!available(field, size)) return;
    value.assign(rest_.begin(), rest_.begin() + size);
    rest_ = rest_.subspan(size);
  }
  // `least_bytes`: the smallest size of one item, so that a count cannot request more memory than
  // was received.
  template <typename T, typename Each>
  void list(const char* field, std::vector<T>& items, uint32_t max_count, size_t least_bytes, Each each) {
    uint32_t count = 0;
    number(field, count, 0, max_count);
    if (!available(field, count * least_bytes)) return;
    items.resize(count);
    for (T& item : items) each(*this, item);
  }
  // A condition that involves several fields; `rule` describes it.
  void require(bool holds, const char* rule) {
    if (!holds) fail(std::string("broken rule: ") + rule);
  }
  // Ok if all fields were present and nothing follows them.
  Status finish() {
    if (!rest_.empty()) fail(std::to_string(rest_.size()) + " bytes follow the last field");
    return status_;
  }

 private:
  bool available(const char* field, size_t size_bytes) {
    if (rest_.size() < size_bytes) {
      fail(std::string(field) + ": expected " + std::to_string(size_bytes) + " bytes, got " +
           std::to_string(rest_.size()));
    }
    return status_.is_ok();
  }
  void fail(const std::string& why) {
    if (status_.is_ok()) status_ = data_loss(std::string(what_) + ": " + why);
  }

  Bytes rest_;
  const char* what_;
  Status status_;
};

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
