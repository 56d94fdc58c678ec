#include "node/peer_facts.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace byteps::node {
namespace {

std::string printable(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return !std::isprint(c); }, '?');
  return text;
}

}  // namespace

std::string encode(const PeerFacts& facts) {
  const std::string text = printable(facts.host) + "\n" + printable(facts.rdma_address) + "\n" +
                           (facts.has_no_rdma_device ? "none" : "") + "\n" + printable(facts.why_no_rdma);
  return text.substr(0, kMaxPeerFactsBytes);
}

Result<PeerFacts> decode_peer_facts(const std::string& text) {
  PeerFacts facts;
  std::string none;
  std::istringstream lines(text);
  if (!std::getline(lines, facts.host) || !std::getline(lines, facts.rdma_address) ||
      !std::getline(lines, none)) {
    return data_loss("expected the facts about a doctor's machine, got " + std::to_string(text.size()) +
                     " bytes of something else");
  }
  std::getline(lines, facts.why_no_rdma);
  facts.host = printable(facts.host);
  facts.rdma_address = printable(facts.rdma_address);
  facts.why_no_rdma = printable(facts.why_no_rdma);
  facts.has_no_rdma_device = none == "none";
  return facts;
}

}  // namespace byteps::node
