// Messages in which two ends exchange their queue pairs' parameters, through an authenticated TCP
// connection. Layout: docs/wire-format.md, "RDMA".
//
// Pure. The connecting end sends an offer; the accepting end answers with its own or a refusal. So
// they do again for each further queue pair (renewal.cc), for which the accepting end may ask.
#pragma once

#include <cstdint>
#include <optional>
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
  uint32_t attempt = 0;  // number of queue pairs that this connection has had before
  // Number of immediates that this end has received over them, modulo 2^32.
  uint32_t arrivals = 0;
  std::string card;  // for messages: "mlx5_0 port 1, ::ffff:10.0.0.2 (RoCE v2, index 1)"
};

inline constexpr size_t kMaxCardBytes = 128;
// Leaves room for what transport/resume adds to a head.
inline constexpr size_t kMaxOfferBytes = kMaxHeadBytes - 8;

// Encodes an offer as the head of a frame without payload.
std::string encode_offer(const EndpointOffer& offer);
std::string encode_refusal(const Status& why);
// Of the accepting end: the queue pair `attempt` has failed, offer the next one.
std::string encode_renewal_request(uint32_t attempt);
// Decodes an offer or refusal. kUnavailable: a refusal, with its reason; kDataLoss: neither.
Result<EndpointOffer> decode_offer(Bytes in);
// The attempt of a renewal request; nullopt: it is something else.
std::optional<uint32_t> decode_renewal_request(Bytes in);

}  // namespace byteps::transport::rdma
