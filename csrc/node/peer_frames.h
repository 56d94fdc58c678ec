// The frames between two processes of `byteps doctor` (peer_listener.h, peer_check.h); these words
// are their heads.
#pragma once

#include <cstddef>
#include <string_view>

namespace byteps::node {

// The words contain the version, so different versions refuse each other. kPeerEcho is answered
// with the same frame.
inline constexpr std::string_view kPeerAsk = "byteps doctor 1: ask";    // no payload; over TCP only
inline constexpr std::string_view kPeerTell = "byteps doctor 1: tell";  // the answer: PeerFacts
inline constexpr std::string_view kPeerEcho = "byteps doctor 1: echo";

inline constexpr size_t kMaxPeerEchoBytes = size_t{1} << 20;
inline constexpr size_t kMaxPeerFactsBytes = 4096;

}  // namespace byteps::node
