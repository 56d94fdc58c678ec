// What a listening doctor tells one that asks. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace byteps::node {

struct PeerFacts {
  std::string host;
  std::string rdma_address;  // of its RDMA listener, for parse_address(); empty: it has none, because
  std::string why_no_rdma;
  bool has_no_rdma_device = false;  // or does not want to use it: nothing is wrong
};

// Lines of text, at most kMaxPeerFactsBytes.
std::string encode(const PeerFacts& facts);
// What is no printable character becomes a question mark: it goes into messages. kDataLoss: no facts.
Result<PeerFacts> decode_peer_facts(const std::string& text);

}  // namespace byteps::node
