// Proof of the job's secret, both ways, before anything else on a connection is parsed.
//
// Pure: bytes in, bytes out. Messages have fixed sizes, so that nothing an uninvited peer sends is interpreted:
//   connecting -> accepting   "BPS" version, nonce_c[32]
//   accepting  -> connecting  "BPS" version, nonce_a[32]
//   connecting -> accepting   HMAC-SHA256(secret, "byteps connect" | job id | nonce_c | nonce_a)
//   accepting  -> connecting  HMAC-SHA256(secret, "byteps accept"  | job id | nonce_c | nonce_a)
// The connecting side proves itself first: who listens tells nothing to a stranger. The labels differ, so a
// proof cannot be reflected. Source: ISO/IEC 9798-4 mechanism 4 (three-pass mutual authentication), HMAC: RFC 2104.
#pragma once

#include <array>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace byteps::transport {

struct Credentials {
  std::string secret;  // empty: only loopback addresses are listened on and connected to
  std::string job_id;  // keeps jobs apart that share a secret
};

inline constexpr size_t kHelloBytes = 36;
inline constexpr size_t kProofBytes = 32;
using Hello = std::array<std::byte, kHelloBytes>;
using Proof = std::array<std::byte, kProofBytes>;

enum class Side { kConnecting, kAccepting };

// What `side` sends to prove that it knows the credentials, as above.
Proof compute_proof(Side side, const Credentials& credentials, const Hello& of_connecting,
                    const Hello& of_accepting);

// One side of one handshake. `credentials` must outlive it.
class Handshake {
 public:
  // Draws the nonce from the operating system's generator.
  Handshake(Side side, const Credentials& credentials);

  const Hello& hello() const { return hello_; }
  // kDataLoss: not this protocol (a port scanner, an HTTP client) or another version.
  Status on_hello(const Hello& other);
  // After on_hello: what this side sends to prove itself.
  Proof proof() const;
  // Constant time. kPermissionDenied when the other side does not know the secret or is of another job.
  Status verify(const Proof& other) const;

 private:
  Proof proof_of(Side side) const;

  const Side side_;
  const Credentials& credentials_;
  Hello hello_;
  Hello other_{};
};

}  // namespace byteps::transport
