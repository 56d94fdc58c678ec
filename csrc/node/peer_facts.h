// Facts about its machine that a listening doctor sends to the other end. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace byteps::node {

struct PeerFacts {
  std::string host;
  // Address of the RDMA listener, for parse_address(); empty: none, for the reason below.
  std::string rdma_address;
  std::string why_no_rdma;
  bool has_no_rdma_device = false;  // or RDMA is disabled: not an error
};

inline constexpr size_t kMaxPeerFactsBytes = 4096;

// Encodes the facts as lines of text, at most kMaxPeerFactsBytes.
std::string encode(const PeerFacts& facts);
// Replaces characters that are not printable by question marks, because the facts appear in
// messages. kDataLoss: not valid facts.
Result<PeerFacts> decode_peer_facts(const std::string& text);

}  // namespace byteps::node
