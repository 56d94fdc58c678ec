#include "transport/rdma/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>

namespace byteps::transport::rdma {
namespace {

EndpointOffer some_offer() {
  return {.rail = 3,
          .is_ethernet = true,
          .queue_pair = {.number = 0xabcdef,
                         .packet_sequence = 0x123456,
                         .lid = 0x4321,
                         .gid = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
                         .mtu_bytes = 4096},
          .ring_address = 0x7f1234567000,
          .ring_key = 0xfedcba98,
          .attempt = 0x10203040,
          .arrivals = 0xa0b0c0d0,
          .card = "mlx5_0 port 1, ::ffff:10.0.0.2 (RoCE v2, index 1)"};
}

void expect_sound(const Result<EndpointOffer>& decoded) {
  if (!decoded) {
    const StatusCode code = decoded.status().code();
    EXPECT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kUnavailable) << decoded.status();
    EXPECT_TRUE(std::all_of(decoded.status().message().begin(), decoded.status().message().end(),
                            [](unsigned char c) { return std::isprint(c); }));
    return;
  }
  EXPECT_LE(decoded->queue_pair.number, 0xffffffu);
  EXPECT_LE(decoded->queue_pair.packet_sequence, 0xffffffu);
  const int mtu_bytes = decoded->queue_pair.mtu_bytes;
  EXPECT_TRUE(mtu_bytes >= 256 && mtu_bytes <= 4096 && (mtu_bytes & (mtu_bytes - 1)) == 0) << mtu_bytes;
  EXPECT_NE(decoded->ring_address, 0u);
  EXPECT_LE(decoded->card.size(), kMaxCardBytes);
  EXPECT_TRUE(std::all_of(decoded->card.begin(), decoded->card.end(),
                          [](unsigned char c) { return std::isprint(c); }));
}

TEST(RdmaBootstrapTest, AnOfferArrivesAsItWasMade) {
  for (const int mtu_bytes : {256, 512, 1024, 2048, 4096}) {
    EndpointOffer offer = some_offer();
    offer.queue_pair.mtu_bytes = mtu_bytes;
    offer.is_ethernet = mtu_bytes != 512;
    const std::string text = encode_offer(offer);
    EXPECT_LE(text.size(), kMaxOfferBytes);
    const auto decoded = decode_offer(as_bytes(text));
    ASSERT_TRUE(decoded.is_ok()) << decoded.status();
    EXPECT_EQ(decoded->rail, offer.rail);
    EXPECT_EQ(decoded->is_ethernet, offer.is_ethernet);
    EXPECT_EQ(decoded->queue_pair.number, offer.queue_pair.number);
    EXPECT_EQ(decoded->queue_pair.packet_sequence, offer.queue_pair.packet_sequence);
    EXPECT_EQ(decoded->queue_pair.lid, offer.queue_pair.lid);
    EXPECT_EQ(decoded->queue_pair.gid, offer.queue_pair.gid);
    EXPECT_EQ(decoded->queue_pair.mtu_bytes, mtu_bytes);
    EXPECT_EQ(decoded->ring_address, offer.ring_address);
    EXPECT_EQ(decoded->ring_key, offer.ring_key);
    EXPECT_EQ(decoded->attempt, offer.attempt);
    EXPECT_EQ(decoded->arrivals, offer.arrivals);
    EXPECT_EQ(decoded->card, offer.card);
  }
}

TEST(RdmaBootstrapTest, ARefusalBringsItsReason) {
  const auto refused = decode_offer(as_bytes(encode_refusal(unavailable("no room at mlx5_0"))));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("no room at mlx5_0"), std::string::npos) << refused.status();
  EXPECT_LE(encode_refusal(unavailable(std::string(5000, 'x'))).size(), kMaxOfferBytes);
}

TEST(RdmaBootstrapTest, ARenewalRequestIsNothingElse) {
  const std::string request = encode_renewal_request(0x01020304);
  EXPECT_EQ(decode_renewal_request(as_bytes(request)), 0x01020304u);
  EXPECT_EQ(decode_offer(as_bytes(request)).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(decode_renewal_request(as_bytes(encode_offer(some_offer()))));
  EXPECT_FALSE(decode_renewal_request(as_bytes(encode_refusal(unavailable("1234")))));
  for (size_t size = 0; size < request.size(); ++size) {
    EXPECT_FALSE(decode_renewal_request(as_bytes(request).first(size))) << size;
  }
  EXPECT_FALSE(decode_renewal_request(as_bytes(request + "x")));
}

TEST(RdmaBootstrapTest, EveryChangedByteIsRefusedOrStaysWithinTheLimits) {
  for (const std::string& good : {encode_offer(some_offer()), encode_refusal(unavailable("why"))}) {
    for (size_t at = 0; at < good.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string text = good;
        text[at] = static_cast<char>(value);
        expect_sound(decode_offer(as_bytes(text)));
      }
      if (HasFailure()) return;
    }
  }
}

TEST(RdmaBootstrapTest, WhatIsCutShortIsRefusedAndWhatIsTooLongToo) {
  EndpointOffer offer = some_offer();
  offer.card.clear();
  const std::string text = encode_offer(offer);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(decode_offer(as_bytes(text).first(size)).status().code(), StatusCode::kDataLoss) << size;
  }
  EXPECT_TRUE(decode_offer(as_bytes(text + std::string(kMaxCardBytes, 'c'))));
  EXPECT_EQ(decode_offer(as_bytes(text + std::string(kMaxCardBytes + 1, 'c'))).status().code(),
            StatusCode::kDataLoss);
}

TEST(RdmaBootstrapTest, NoiseIsRefusedOrStaysWithinTheLimits) {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    std::string text(random() % (kMaxOfferBytes + 1), '\0');
    for (char& c : text) c = static_cast<char>(random());
    if (text.size() >= 2 && random() % 4 != 0) {
      text[0] = 2;
      text[1] = static_cast<char>(1 + random() % 2);
    }
    expect_sound(decode_offer(as_bytes(text)));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace byteps::transport::rdma
