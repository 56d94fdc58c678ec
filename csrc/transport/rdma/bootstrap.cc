#include "transport/rdma/bootstrap.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kOffer = 1;
constexpr uint8_t kRefusal = 2;
constexpr uint32_t kMax24Bits = 0xffffff;
constexpr std::array kMtus{256, 512, 1024, 2048, 4096};

class Writer {
 public:
  template <typename T>
  void number(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    store_number(bytes.data(), value);
    out_.append(as_text(bytes));
  }
  void text(const std::string& text, size_t limit) { out_.append(text, 0, limit); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(Bytes in) : in_(in) {}
  template <typename T>
  T number() {
    if (in_.size() < sizeof(T)) {
      failed_ = true;
      return 0;
    }
    const T value = load_number<T>(in_.data());
    in_ = in_.subspan(sizeof(T));
    return value;
  }
  // The remaining bytes as text for messages; characters that are not printable become question
  // marks.
  std::string text() {
    std::string text(as_text(in_));
    std::replace_if(text.begin(), text.end(), [](unsigned char c) { return !std::isprint(c); }, '?');
    return text;
  }
  bool failed() const { return failed_; }

 private:
  Bytes in_;
  bool failed_ = false;
};

Status invalid_offer(const std::string& what) { return data_loss("RDMA: an invalid offer: " + what); }

Status check(const EndpointOffer& offer) {
  const QueuePairAddress& queue_pair = offer.queue_pair;
  if (queue_pair.number > kMax24Bits || queue_pair.packet_sequence > kMax24Bits)
    return invalid_offer("a number of more than 24 bits");
  if (std::find(kMtus.begin(), kMtus.end(), queue_pair.mtu_bytes) == kMtus.end()) {
    return invalid_offer("packets of " + std::to_string(queue_pair.mtu_bytes) + " bytes");
  }
  if (offer.ring_address == 0) return invalid_offer("no ring");
  if (offer.card.size() > kMaxCardBytes)
    return invalid_offer("a card's name of " + std::to_string(offer.card.size()) + " bytes");
  return Status::ok();
}

}  // namespace

std::string encode_offer(const EndpointOffer& offer) {
  Writer out;
  out.number(kVersion);
  out.number(kOffer);
  out.number(offer.rail);
  out.number(static_cast<uint8_t>(offer.is_ethernet));
  out.number(offer.queue_pair.number);
  out.number(offer.queue_pair.packet_sequence);
  out.number(offer.queue_pair.lid);
  for (const uint8_t byte : offer.queue_pair.gid) out.number(byte);
  out.number(static_cast<uint16_t>(offer.queue_pair.mtu_bytes));
  out.number(offer.ring_address);
  out.number(offer.ring_key);
  out.text(offer.card, kMaxCardBytes);
  return out.take();
}

std::string encode_refusal(const Status& why) {
  Writer out;
  out.number(kVersion);
  out.number(kRefusal);
  out.text(why.message(), kMaxOfferBytes - 2);
  return out.take();
}

Result<EndpointOffer> decode_offer(Bytes in) {
  Reader reader(in);
  const auto version = reader.number<uint8_t>();
  const auto kind = reader.number<uint8_t>();
  if (reader.failed() || version != kVersion) return invalid_offer("version " + std::to_string(version));
  if (kind == kRefusal) return unavailable("refused by the other end: " + reader.text());
  if (kind != kOffer) return invalid_offer("kind " + std::to_string(kind));
  EndpointOffer offer;
  offer.rail = reader.number<uint16_t>();
  const auto is_ethernet = reader.number<uint8_t>();
  offer.is_ethernet = is_ethernet != 0;
  offer.queue_pair.number = reader.number<uint32_t>();
  offer.queue_pair.packet_sequence = reader.number<uint32_t>();
  offer.queue_pair.lid = reader.number<uint16_t>();
  for (uint8_t& byte : offer.queue_pair.gid) byte = reader.number<uint8_t>();
  offer.queue_pair.mtu_bytes = reader.number<uint16_t>();
  offer.ring_address = reader.number<uint64_t>();
  offer.ring_key = reader.number<uint32_t>();
  if (reader.failed() || is_ethernet > 1) return invalid_offer(std::to_string(in.size()) + " bytes");
  offer.card = reader.text();
  BPS_RETURN_IF_ERROR(check(offer));
  return offer;
}

}  // namespace byteps::transport::rdma
