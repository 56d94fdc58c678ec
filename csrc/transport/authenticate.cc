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
constexpr std::array<std::byte, 4> kProtocol{std::byte{'B'}, std::byte{'P'}, std::byte{'S'}, std::byte{2}};
static_assert(kHelloBytes == kProtocol.size() + kNonceBytes);
constexpr std::string_view kOtherSecretText = "byteps: refused: another secret.";
static_assert(kOtherSecretText.size() == kVerdictBytes);

constexpr std::string_view kOfSecret = "byteps secret";
constexpr std::string_view kOfConnecting = "byteps connect";
constexpr std::string_view kAcceptance = "byteps accept";
constexpr std::string_view kOtherJob = "byteps other job";

Bytes nonce_of(const Hello& hello) { return Bytes(hello).last(kNonceBytes); }

void append(std::vector<std::byte>& text, Bytes part) { text.insert(text.end(), part.begin(), part.end()); }

// Takes constant time.
bool equal(Bytes one, Bytes other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string advice(const Credentials& credentials) {
  return credentials.loopback_only
             ? "no BYTEPS_SECRET_FILE is set, so each user has a secret of its own, in its home folder: is "
               "it a process of another user, with another HOME, or of a job that has a secret?"
             : "check that BYTEPS_SECRET_FILE (or BYTEPS_SECRET) holds the same on every machine, or start "
               "all with bpslaunch";
}

}  // namespace

Handshake::Handshake(Side side, const Credentials& credentials) : side_(side), credentials_(credentials) {
  std::copy(kProtocol.begin(), kProtocol.end(), hello_.begin());
  while (getrandom(hello_.data() + kProtocol.size(), kNonceBytes, 0) != ssize_t{kNonceBytes}) {
    // Happens only while the machine boots.
    BPS_CHECK(errno == EINTR) << "getrandom: errno " << errno;
  }
}

bool Handshake::is_hello(const Hello& other) {
  return std::equal(kProtocol.begin(), kProtocol.end() - 1, other.begin());
}

Status Handshake::on_hello(const Hello& other) {
  if (!is_hello(other)) return data_loss("handshake: the other side does not speak byteps' protocol");
  if (other[3] != kProtocol[3]) {
    return data_loss("handshake: the other side has protocol version " +
                     std::to_string(std::to_integer<int>(other[3])) + ", expected " +
                     std::to_string(std::to_integer<int>(kProtocol[3])) +
                     ": install the same release of byteps on every machine");
  }
  other_ = other;
  return Status::ok();
}

Claim Handshake::claim() const {
  Claim claim;
  const auto rest = std::ranges::copy(mac(kOfSecret), claim.begin()).out;
  std::ranges::copy(mac(kOfConnecting, credentials_.job_id), rest);
  return claim;
}

AuthResult Handshake::judge(const Claim& claim) const {
  const Claim expected = this->claim();
  constexpr size_t kHalf = kClaimBytes / 2;
  if (!equal(Bytes(claim).first(kHalf), Bytes(expected).first(kHalf))) return AuthResult::kOtherSecret;
  return equal(claim, expected) ? AuthResult::kAccepted : AuthResult::kOtherJob;
}

Verdict Handshake::verdict(AuthResult result) const {
  switch (result) {
    case AuthResult::kAccepted: return mac(kAcceptance, credentials_.job_id);
    case AuthResult::kOtherJob: return mac(kOtherJob);
    case AuthResult::kOtherSecret: break;
  }
  Verdict text;
  std::ranges::copy(as_bytes(kOtherSecretText), text.begin());
  return text;
}

Status Handshake::check_verdict(const Verdict& verdict) const {
  if (equal(verdict, this->verdict(AuthResult::kAccepted))) return Status::ok();
  if (equal(verdict, this->verdict(AuthResult::kOtherJob))) {
    return permission_denied(
        "handshake: refused by the other side: it knows the secret, but has another job id than \"" +
        credentials_.job_id + "\": check BYTEPS_JOB_ID, and that no other job has its port");
  }
  if (equal(verdict, this->verdict(AuthResult::kOtherSecret))) {
    return permission_denied("handshake: refused by the other side: it has another secret: " +
                             advice(credentials_));
  }
  return permission_denied("handshake: the other side did not prove that it knows the secret: " +
                           advice(credentials_));
}

Status Handshake::explain(AuthResult result) const {
  if (result == AuthResult::kAccepted) return Status::ok();
  if (result == AuthResult::kOtherJob)
    return permission_denied("it knows the secret, but has another job id");
  return permission_denied("it has another secret: " + advice(credentials_));
}

Verdict Handshake::mac(std::string_view label, std::string_view job_id) const {
  const bool connecting = side_ == Side::kConnecting;
  std::vector<std::byte> text;
  append(text, as_bytes(label));
  append(text, as_bytes(job_id));
  append(text, nonce_of(connecting ? hello_ : other_));
  append(text, nonce_of(connecting ? other_ : hello_));
  Verdict mac;
  const unsigned char* done =
      HMAC(EVP_sha256(), credentials_.secret.data(), static_cast<int>(credentials_.secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), nullptr);
  BPS_CHECK(done != nullptr) << "HMAC-SHA256 failed";
  return mac;
}

}  // namespace byteps::transport
