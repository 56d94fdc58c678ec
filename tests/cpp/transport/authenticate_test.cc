#include "transport/authenticate.h"

#include <gtest/gtest.h>

#include <string>

namespace byteps::transport {
namespace {

const Credentials kCredentials{"a secret", "job 7"};

std::string hex(Bytes bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    for (const int digit : {std::to_integer<int>(byte >> 4), std::to_integer<int>(byte & std::byte{15})}) {
      text += "0123456789abcdef"[digit];
    }
  }
  return text;
}

Hello hello_with_nonce_from(int first) {
  Hello hello{std::byte{'B'}, std::byte{'P'}, std::byte{'S'}, std::byte{1}};
  for (int i = 0; i < 32; ++i) hello[4 + i] = static_cast<std::byte>(first + i);
  return hello;
}

// Computed with Python: hmac.new(b"a secret", b"byteps connect" + b"job 7" + bytes(range(32)) +
// bytes(range(100, 132)), "sha256"), and the same with b"byteps accept".
TEST(Authenticate, ProofsAreTheDocumentedHmac) {
  const Hello connecting = hello_with_nonce_from(0);
  const Hello accepting = hello_with_nonce_from(100);
  EXPECT_EQ(hex(compute_proof(Side::kConnecting, kCredentials, connecting, accepting)),
            "9c2c8ccb714ea067875a38a0b7184711a9bd31a6832f0d620d22bf0a899e08ac");
  EXPECT_EQ(hex(compute_proof(Side::kAccepting, kCredentials, connecting, accepting)),
            "bb4559cbaa4668f7e1da15685f598142c181ec1866f864051eb9c1f623a41875");
}

struct Both {
  Both(const Credentials& of_connecting, const Credentials& of_accepting)
      : connecting(Side::kConnecting, of_connecting), accepting(Side::kAccepting, of_accepting) {
    EXPECT_TRUE(connecting.on_hello(accepting.hello()).is_ok());
    EXPECT_TRUE(accepting.on_hello(connecting.hello()).is_ok());
  }
  Handshake connecting;
  Handshake accepting;
};

TEST(Authenticate, SidesWithTheSameCredentialsAcceptEachOther) {
  for (const Credentials& credentials :
       {kCredentials, Credentials{"", "job"}, Credentials{std::string(1000, 'x'), ""}}) {
    const Both both(credentials, credentials);
    EXPECT_TRUE(both.accepting.verify(both.connecting.proof()).is_ok());
    EXPECT_TRUE(both.connecting.verify(both.accepting.proof()).is_ok());
  }
}

TEST(Authenticate, AnotherSecretOrJobIsRefusedByBothSides) {
  for (const Credentials& other :
       {Credentials{"b secret", "job 7"}, Credentials{"a secret", "job 8"}, Credentials{"", "job 7"},
        Credentials{"a secret", ""}, Credentials{"a secret\0", "job 7"}}) {
    if (other.secret == kCredentials.secret && other.job_id == kCredentials.job_id) continue;
    const Both both(kCredentials, other);
    EXPECT_EQ(both.accepting.verify(both.connecting.proof()).code(), StatusCode::kPermissionDenied);
    EXPECT_EQ(both.connecting.verify(both.accepting.proof()).code(), StatusCode::kPermissionDenied);
  }
}

TEST(Authenticate, AReflectedProofIsRefused) {
  const Both both(kCredentials, kCredentials);
  EXPECT_FALSE(both.accepting.verify(both.accepting.proof()).is_ok());
  EXPECT_FALSE(both.connecting.verify(both.connecting.proof()).is_ok());
  // Also by who answers with the hello it was sent.
  Handshake mirrored(Side::kConnecting, kCredentials);
  ASSERT_TRUE(mirrored.on_hello(mirrored.hello()).is_ok());
  EXPECT_FALSE(mirrored.verify(mirrored.proof()).is_ok());
}

TEST(Authenticate, AProofIsGoodForOneHandshake) {
  const Both first(kCredentials, kCredentials);
  const Both second(kCredentials, kCredentials);
  EXPECT_NE(first.connecting.hello(), second.connecting.hello());
  EXPECT_FALSE(second.accepting.verify(first.connecting.proof()).is_ok());
}

TEST(Authenticate, EveryBitOfAProofCounts) {
  const Both both(kCredentials, kCredentials);
  for (size_t bit = 0; bit < 8 * kProofBytes; ++bit) {
    Proof proof = both.connecting.proof();
    proof[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(both.accepting.verify(proof).is_ok()) << bit;
  }
}

TEST(Authenticate, StrangersAndOtherVersionsAreToldApart) {
  Handshake handshake(Side::kAccepting, kCredentials);
  Hello http{};
  const std::string_view request = "GET / HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n";
  std::copy_n(as_bytes(request).begin(), http.size(), http.begin());
  const Status stranger = handshake.on_hello(http);
  EXPECT_EQ(stranger.code(), StatusCode::kDataLoss);
  Hello newer = hello_with_nonce_from(0);
  newer[3] = std::byte{2};
  const Status other_version = handshake.on_hello(newer);
  EXPECT_EQ(other_version.code(), StatusCode::kDataLoss);
  EXPECT_NE(other_version.message().find("version 2"), std::string::npos) << other_version;
}

}  // namespace
}  // namespace byteps::transport
