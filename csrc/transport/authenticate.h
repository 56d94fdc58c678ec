// Proof of the job's secret, both ways, before anything else on a connection is parsed.
//
// Pure: bytes in, bytes out. Messages have fixed sizes, so that nothing an uninvited peer sends is interpreted:
//   connecting -> accepting   Hello    "BPS" version, nonce_c[32]
//   accepting  -> connecting  Hello    "BPS" version, nonce_a[32]
//   connecting -> accepting   Claim    mac("byteps secret"), mac("byteps connect" | job id)
//   accepting  -> connecting  Verdict  accepted: mac("byteps accept" | job id); of another job: mac("byteps other job");
//                                      of another secret: a text that everybody knows
// mac(label) is HMAC-SHA256(secret, label | nonce_c | nonce_a). The connecting side proves itself first: who listens
// tells a stranger no more than that it is refused. So who is refused knows it, and why; a connection that only ends may
// be tried again. The labels differ, so a proof cannot be reflected. Source: ISO/IEC 9798-4 mechanism 4 (three-pass
// mutual authentication), HMAC: RFC 2104.
#pragma once

#include <array>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace byteps::transport {

struct Credentials {
  std::string secret;          // empty: of TCP, nothing is listened on or connected to
  std::string job_id;          // keeps jobs apart that share a secret
  bool loopback_only = false;  // the secret is this user's own, which other machines do not have
};

inline constexpr size_t kHelloBytes = 36;
inline constexpr size_t kVerdictBytes = 32;
inline constexpr size_t kClaimBytes = 64;
using Hello = std::array<std::byte, kHelloBytes>;
using Claim = std::array<std::byte, kClaimBytes>;
using Verdict = std::array<std::byte, kVerdictBytes>;

enum class Side { kConnecting, kAccepting };
enum class AuthResult { kAccepted, kOtherJob, kOtherSecret };

// One side of one handshake. `credentials` must outlive it.
class Handshake {
 public:
  // Draws the nonce from the operating system's generator.
  Handshake(Side side, const Credentials& credentials);

  const Hello& hello() const { return hello_; }
  // kDataLoss: not this protocol (a port scanner, an HTTP client) or another version.
  Status on_hello(const Hello& other);
  // Whether it is a hello of some version: its sender can make sense of this side's.
  static bool is_hello(const Hello& other);

  // After on_hello. The connecting side's proof; what the accepting side thinks of it, and says to it.
  Claim claim() const;
  AuthResult judge(const Claim& claim) const;
  Verdict verdict(AuthResult judgement) const;
  // The connecting side: ok, or kPermissionDenied with what differs and what to do.
  Status check_verdict(const Verdict& verdict) const;
  // The accepting side: the same, for its log.
  Status explain(AuthResult judgement) const;

 private:
  Verdict mac(std::string_view label, std::string_view job_id = {}) const;

  const Side side_;
  const Credentials& credentials_;
  Hello hello_;
  Hello other_{};
};

}  // namespace byteps::transport
