// Messages in which two ends exchange their queue pairs' parameters, through an authenticated TCP
// connection. Layout: docs/wire-format.md, "RDMA".
//
// Pure. The connecting end sends an offer; the accepting end answers with its own or a refusal.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/transport.h"

namespace byteps::transport::rdma {

struct EndpointOffer {
  // Index of the NIC that the connecting end uses; the accepting end uses the same index.
  uint16_t rail = 0;
  bool is_ethernet = false;  // RoCE; must be equal on both ends
  QueuePairAddress queue_pair;
  uint64_t ring_address = 0;  // address of the ring, of kRingBytes
  uint32_t ring_key = 0;
  std::string card;  // for messages: "mlx5_0 port 1, ::ffff:10.0.0.2 (RoCE v2, index 1)"
};

inline constexpr size_t kMaxCardBytes = 128;
// Leaves room for what transport/resume adds to a head.
inline constexpr size_t kMaxOfferBytes = kMaxHeadBytes - 8;

// Encodes an offer as the head of a frame without payload.
std::string encode_offer(const EndpointOffer& offer);
std::string encode_refusal(const Status& why);
// Decodes an offer or refusal. kUnavailable: a refusal, with its reason; kDataLoss: neither.
Result<EndpointOffer> decode_offer(Bytes in);

}  // namespace byteps::transport::rdma
