#include "transport/rdma/bootstrap.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "base/numbers.h"

namespace byteps::transport::rdma {
namespace {

constexpr uint8_t kVersion = 2;
constexpr uint8_t kOffer = 1;
constexpr uint8_t kRefusal = 2;
constexpr uint8_t kRenewalRequest = 3;
constexpr uint32_t kMax24Bits = 0xffffff;
constexpr std::array kMtus{256, 512, 1024, 2048, 4096};

constexpr size_t kReasonOffset = 2;
constexpr size_t kCardOffset = 53;
constexpr size_t kRenewalRequestBytes = 6;

// Text of the peer for messages; characters that are not printable become question marks.
std::string printable(Bytes in) {
  std::string text(as_text(in));
  std::ranges::replace_if(text, [](unsigned char c) { return !std::isprint(c); }, '?');
  return text;
}

Status invalid_offer(const std::string& what) { return data_loss("RDMA: an invalid offer: " + what); }

Status check(const EndpointOffer& offer) {
  const QueuePairAddress& queue_pair = offer.queue_pair;
  if (queue_pair.number > kMax24Bits || queue_pair.packet_sequence > kMax24Bits)
    return invalid_offer("a number of more than 24 bits");
  if (std::ranges::find(kMtus, queue_pair.mtu_bytes) == kMtus.end()) {
    return invalid_offer("packets of " + std::to_string(queue_pair.mtu_bytes) + " bytes");
  }
  if (offer.ring_address == 0) return invalid_offer("no ring");
  if (offer.card.size() > kMaxCardBytes)
    return invalid_offer("a card's name of " + std::to_string(offer.card.size()) + " bytes");
  return Status::ok();
}

}  // namespace

std::string encode_offer(const EndpointOffer& offer) {
  std::array<std::byte, kCardOffset> out;
  store_number(&out[0], kVersion);
  store_number(&out[1], kOffer);
  store_number(&out[2], offer.rail);
  store_number(&out[4], static_cast<uint8_t>(offer.is_ethernet));
  store_number(&out[5], offer.queue_pair.number);
  store_number(&out[9], offer.queue_pair.packet_sequence);
  store_number(&out[13], offer.queue_pair.lid);
  std::memcpy(&out[15], offer.queue_pair.gid.data(), sizeof(Gid));
  store_number(&out[31], static_cast<uint16_t>(offer.queue_pair.mtu_bytes));
  store_number(&out[33], offer.ring_address);
  store_number(&out[41], offer.ring_key);
  store_number(&out[45], offer.attempt);
  store_number(&out[49], offer.arrivals);
  return std::string(as_text(out)).append(offer.card, 0, kMaxCardBytes);
}

std::string encode_refusal(const Status& why) {
  const std::array front{std::byte{kVersion}, std::byte{kRefusal}};
  return std::string(as_text(front)).append(why.message(), 0, kMaxOfferBytes - kReasonOffset);
}

std::string encode_renewal_request(uint32_t attempt) {
  std::array<std::byte, kRenewalRequestBytes> out;
  store_number(&out[0], kVersion);
  store_number(&out[1], kRenewalRequest);
  store_number(&out[2], attempt);
  return std::string(as_text(out));
}

std::optional<uint32_t> decode_renewal_request(Bytes in) {
  if (in.size() != kRenewalRequestBytes) return std::nullopt;
  if (load_number<uint8_t>(&in[0]) != kVersion) return std::nullopt;
  if (load_number<uint8_t>(&in[1]) != kRenewalRequest) return std::nullopt;
  return load_number<uint32_t>(&in[2]);
}

Result<EndpointOffer> decode_offer(Bytes in) {
  const auto version = in.empty() ? uint8_t{0} : load_number<uint8_t>(&in[0]);
  if (in.size() < kReasonOffset || version != kVersion) {
    return invalid_offer("version " + std::to_string(version));
  }
  const auto kind = load_number<uint8_t>(&in[1]);
  if (kind == kRefusal)
    return unavailable("refused by the other end: " + printable(in.subspan(kReasonOffset)));
  if (kind != kOffer) return invalid_offer("kind " + std::to_string(kind));
  if (in.size() < kCardOffset || load_number<uint8_t>(&in[4]) > 1) {
    return invalid_offer(std::to_string(in.size()) + " bytes");
  }
  EndpointOffer offer{.rail = load_number<uint16_t>(&in[2]),
                      .is_ethernet = load_number<uint8_t>(&in[4]) == 1,
                      .queue_pair = {.number = load_number<uint32_t>(&in[5]),
                                     .packet_sequence = load_number<uint32_t>(&in[9]),
                                     .lid = load_number<uint16_t>(&in[13]),
                                     .mtu_bytes = load_number<uint16_t>(&in[31])},
                      .ring_address = load_number<uint64_t>(&in[33]),
                      .ring_key = load_number<uint32_t>(&in[41]),
                      .attempt = load_number<uint32_t>(&in[45]),
                      .arrivals = load_number<uint32_t>(&in[49]),
                      .card = printable(in.subspan(kCardOffset))};
  std::memcpy(offer.queue_pair.gid.data(), &in[15], sizeof(Gid));
  BPS_RETURN_IF_ERROR(check(offer));
  return offer;
}

}  // namespace byteps::transport::rdma
