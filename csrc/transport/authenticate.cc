#include "transport/authenticate.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/check.h"

namespace byteps::transport {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr std::array<std::byte, 4> kProtocol{std::byte{'B'}, std::byte{'P'}, std::byte{'S'}, std::byte{1}};
static_assert(kHelloBytes == kProtocol.size() + kNonceBytes);

Bytes nonce_of(const Hello& hello) { return Bytes(hello).last(kNonceBytes); }

void append(std::vector<std::byte>& text, Bytes part) { text.insert(text.end(), part.begin(), part.end()); }

}  // namespace

Proof compute_proof(Side side, const Credentials& credentials, const Hello& of_connecting,
                    const Hello& of_accepting) {
  std::vector<std::byte> text;
  append(text, as_bytes(side == Side::kConnecting ? "byteps connect" : "byteps accept"));
  append(text, as_bytes(credentials.job_id));
  append(text, nonce_of(of_connecting));
  append(text, nonce_of(of_accepting));
  Proof proof;
  const unsigned char* done =
      HMAC(EVP_sha256(), credentials.secret.data(), static_cast<int>(credentials.secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(proof.data()), nullptr);
  BPS_CHECK(done != nullptr) << "HMAC-SHA256 failed";
  return proof;
}

Handshake::Handshake(Side side, const Credentials& credentials) : side_(side), credentials_(credentials) {
  std::copy(kProtocol.begin(), kProtocol.end(), hello_.begin());
  while (getrandom(hello_.data() + kProtocol.size(), kNonceBytes, 0) != ssize_t{kNonceBytes}) {
    BPS_CHECK(errno == EINTR) << "getrandom: errno " << errno;  // only while the machine boots
  }
}

Status Handshake::on_hello(const Hello& other) {
  if (!std::equal(kProtocol.begin(), kProtocol.end() - 1, other.begin())) {
    return data_loss("handshake: the other side does not speak byteps' protocol");
  }
  if (other[3] != kProtocol[3]) {
    return data_loss("handshake: protocol version " + std::to_string(std::to_integer<int>(other[3])) +
                     ", expected " + std::to_string(std::to_integer<int>(kProtocol[3])) +
                     ": install the same release of byteps on every machine");
  }
  other_ = other;
  return Status::ok();
}

Proof Handshake::proof() const { return proof_of(side_); }

Status Handshake::verify(const Proof& other) const {
  const Proof expected = proof_of(side_ == Side::kConnecting ? Side::kAccepting : Side::kConnecting);
  if (CRYPTO_memcmp(expected.data(), other.data(), kProofBytes) == 0) return Status::ok();
  return permission_denied("handshake: the other side has another secret or belongs to another job");
}

Proof Handshake::proof_of(Side side) const {
  const bool connecting = side_ == Side::kConnecting;
  return compute_proof(side, credentials_, connecting ? hello_ : other_, connecting ? other_ : hello_);
}

}  // namespace byteps::transport
