// What two `byteps doctor`s say to each other (peer_listener.h, peer_check.h): frames whose heads are these words.
#pragma once

#include <cstddef>
#include <string_view>

namespace byteps::node {

// The version is in the words: doctors of others do not understand each other.
inline constexpr std::string_view kPeerAsk = "byteps doctor 1: ask";    // no payload; by TCP
inline constexpr std::string_view kPeerTell = "byteps doctor 1: tell";  // PeerFacts, in answer
inline constexpr std::string_view kPeerEcho = "byteps doctor 1: echo";  // answered by the same frame

inline constexpr size_t kMaxPeerEchoBytes = size_t{1} << 20;
inline constexpr size_t kMaxPeerFactsBytes = 4096;

}  // namespace byteps::node
