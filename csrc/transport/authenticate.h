// Mutual proof of the job's secret, before anything else on a connection is parsed.
//
// Pure: bytes in, bytes out. Messages have fixed sizes, so no length sent by an attacker is used:
//   connecting -> accepting   Hello    "BPS" version, nonce_c[32]
//   accepting  -> connecting  Hello    "BPS" version, nonce_a[32]
//   connecting -> accepting   Claim    mac("byteps secret"), mac("byteps connect" | job id)
//   accepting  -> connecting  Verdict  accepted:       mac("byteps accept" | job id)
//                                      another job:    mac("byteps other job")
//                                      another secret: a publicly known text
// mac(label) is HMAC-SHA256(secret, label | nonce_c | nonce_a). The connecting side proves itself
// first, so the accepting side tells a stranger only that it is refused. A refused peer learns the
// reason; a connection that just ends may be retried. The labels differ, so a proof cannot be
// reflected. Source: ISO/IEC 9798-4 mechanism 4 (three-pass mutual authentication), HMAC: RFC 2104.
#pragma once

#include <array>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace byteps::transport {

struct Credentials {
  std::string secret;          // empty: TCP neither listens nor connects
  std::string job_id;          // separates jobs that share a secret
  bool loopback_only = false;  // the secret belongs to this user and exists on this machine only
};

inline constexpr size_t kHelloBytes = 36;
inline constexpr size_t kVerdictBytes = 32;
inline constexpr size_t kClaimBytes = 64;
using Hello = std::array<std::byte, kHelloBytes>;
using Claim = std::array<std::byte, kClaimBytes>;
using Verdict = std::array<std::byte, kVerdictBytes>;

enum class Side { kConnecting, kAccepting };
enum class AuthResult { kAccepted, kOtherJob, kOtherSecret };

// One side of a handshake. `credentials` must outlive it.
class Handshake {
 public:
  // Draws the nonce from the operating system's random generator.
  Handshake(Side side, const Credentials& credentials);

  const Hello& hello() const { return hello_; }
  // Returns kDataLoss if the peer speaks another protocol (port scanner, HTTP client) or version.
  Status on_hello(const Hello& other);
  // Whether `other` is a Hello of any version, so that its sender understands this side's Hello.
  static bool is_hello(const Hello& other);

  // Valid after on_hello(). claim() is the connecting side's proof; judge() and verdict() are the
  // accepting side's check of it and the answer.
  Claim claim() const;
  AuthResult judge(const Claim& claim) const;
  Verdict verdict(AuthResult result) const;
  // For the connecting side: ok, or kPermissionDenied with the difference and the remedy.
  Status check_verdict(const Verdict& verdict) const;
  // For the accepting side's log: the same status.
  Status explain(AuthResult result) const;

 private:
  Verdict mac(std::string_view label, std::string_view job_id = {}) const;

  const Side side_;
  const Credentials& credentials_;
  Hello hello_;
  Hello other_{};
};

}  // namespace byteps::transport
