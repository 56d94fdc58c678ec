// What two ends tell each other about their queue pairs, through a TCP connection that both have proved the job's secret on.
// Layout: docs/wire-format.md, "RDMA".
//
// Pure. The end that connects sends an offer; the other one an offer of its own, or a refusal with the reason.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/rdma/nic.h"
#include "transport/transport.h"

namespace byteps::transport::rdma {

struct EndpointOffer {
  uint16_t rail = 0;  // which of its cards the connecting end uses; the other one takes its counterpart
  bool is_ethernet = false;  // RoCE; both ends have to be alike
  QueuePairAddress queue_pair;
  uint64_t ring_address = 0;  // kRingBytes there
  uint32_t ring_key = 0;
  std::string card;  // for messages: "mlx5_0 port 1, ::ffff:10.0.0.2 (RoCE v2, index 1)"
};

inline constexpr size_t kMaxCardBytes = 128;
inline constexpr size_t kMaxOfferBytes = kMaxHeadBytes;

// As the head of a frame without payload.
std::string encode_offer(const EndpointOffer& offer);
std::string encode_refusal(const Status& why);
// Of either. kUnavailable: a refusal, with its reason; kDataLoss: neither.
Result<EndpointOffer> decode_offer(Bytes in);

}  // namespace byteps::transport::rdma
