#include "transport/authenticate.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string>

namespace byteps::transport {
namespace {

const Credentials kCredentials{"a secret", "job 7"};

// As specified in docs/wire-format.md.
std::string mac(const std::string& secret, const std::string& text) {
  std::string digest(32, '\0');
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return digest;
}

std::string text_of(Bytes bytes) { return std::string(as_text(bytes)); }

struct Both {
  Both(const Credentials& of_connecting, const Credentials& of_accepting)
      : connecting(Side::kConnecting, of_connecting), accepting(Side::kAccepting, of_accepting) {
    EXPECT_TRUE(connecting.on_hello(accepting.hello()).is_ok());
    EXPECT_TRUE(accepting.on_hello(connecting.hello()).is_ok());
  }
  AuthResult result() const { return accepting.judge(connecting.claim()); }
  Status outcome() const { return connecting.check_verdict(accepting.verdict(result())); }

  Handshake connecting;
  Handshake accepting;
};

TEST(Authenticate, ClaimsAndVerdictsAreTheDocumentedHmacs) {
  const Both both(kCredentials, kCredentials);
  const std::string nonces =
      text_of(both.connecting.hello()).substr(4) + text_of(both.accepting.hello()).substr(4);
  EXPECT_EQ(text_of(both.connecting.claim()),
            mac("a secret", "byteps secret" + nonces) + mac("a secret", "byteps connectjob 7" + nonces));
  const auto verdict = [&](AuthResult result) { return text_of(both.accepting.verdict(result)); };
  EXPECT_EQ(verdict(AuthResult::kAccepted), mac("a secret", "byteps acceptjob 7" + nonces));
  EXPECT_EQ(verdict(AuthResult::kOtherJob), mac("a secret", "byteps other job" + nonces));
  EXPECT_EQ(verdict(AuthResult::kOtherSecret), "byteps: refused: another secret.");
}

TEST(Authenticate, SidesWithTheSameCredentialsAcceptEachOther) {
  for (const Credentials& credentials :
       {kCredentials, Credentials{"", "job"}, Credentials{std::string(1000, 'x'), ""}}) {
    const Both both(credentials, credentials);
    EXPECT_EQ(both.result(), AuthResult::kAccepted);
    EXPECT_TRUE(both.outcome().is_ok()) << both.outcome();
  }
}

TEST(Authenticate, AnotherSecretIsRefusedAndNothingOfTheOwnOneIsTold) {
  for (const Credentials& other : {Credentials{"b secret", "job 7"}, Credentials{"", "job 7"}}) {
    const Both both(kCredentials, other);
    EXPECT_EQ(both.result(), AuthResult::kOtherSecret);
    EXPECT_EQ(both.accepting.explain(both.result()).code(), StatusCode::kPermissionDenied);
    EXPECT_EQ(both.outcome().code(), StatusCode::kPermissionDenied);
    EXPECT_NE(both.outcome().message().find("it has another secret"), std::string::npos) << both.outcome();
    EXPECT_EQ(both.accepting.verdict(both.result()),
              Both(kCredentials, kCredentials).accepting.verdict(both.result()));
  }
}

TEST(Authenticate, AnotherJobIsToldFromAnotherSecret) {
  for (const Credentials& other : {Credentials{"a secret", "job 8"}, Credentials{"a secret", ""}}) {
    const Both both(kCredentials, other);
    EXPECT_EQ(both.result(), AuthResult::kOtherJob);
    EXPECT_EQ(both.outcome().code(), StatusCode::kPermissionDenied);
    EXPECT_NE(both.outcome().message().find("another job id than \"job 7\""), std::string::npos)
        << both.outcome();
  }
}

// A verdict from a peer without the secret is not accepted.
TEST(Authenticate, AnInventedVerdictIsNoAcceptance) {
  const Both both(kCredentials, kCredentials);
  for (const Verdict& verdict :
       {Verdict{}, Both(kCredentials, {"b", "job 7"}).accepting.verdict(AuthResult::kAccepted)}) {
    EXPECT_EQ(both.connecting.check_verdict(verdict).code(), StatusCode::kPermissionDenied);
  }
}

TEST(Authenticate, AReflectedProofIsRefused) {
  const Both both(kCredentials, kCredentials);
  const Claim claim = both.connecting.claim();
  for (const size_t from : {size_t{0}, kVerdictBytes}) {
    Verdict half;
    std::copy_n(claim.begin() + from, kVerdictBytes, half.begin());
    EXPECT_FALSE(both.connecting.check_verdict(half).is_ok());
  }
  // Also if the peer replies with the Hello that it received.
  Handshake mirrored(Side::kConnecting, kCredentials);
  ASSERT_TRUE(mirrored.on_hello(mirrored.hello()).is_ok());
  Verdict half;
  std::copy_n(mirrored.claim().begin() + kVerdictBytes, kVerdictBytes, half.begin());
  EXPECT_FALSE(mirrored.check_verdict(half).is_ok());
}

TEST(Authenticate, AClaimIsGoodForOneHandshake) {
  const Both first(kCredentials, kCredentials);
  const Both second(kCredentials, kCredentials);
  EXPECT_NE(first.connecting.hello(), second.connecting.hello());
  EXPECT_EQ(second.accepting.judge(first.connecting.claim()), AuthResult::kOtherSecret);
  EXPECT_FALSE(second.connecting.check_verdict(first.accepting.verdict(AuthResult::kAccepted)).is_ok());
}

TEST(Authenticate, EveryBitOfAClaimAndOfAVerdictCounts) {
  const Both both(kCredentials, kCredentials);
  for (size_t bit = 0; bit < 8 * kClaimBytes; ++bit) {
    Claim claim = both.connecting.claim();
    claim[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(both.accepting.judge(claim), AuthResult::kAccepted) << bit;
  }
  for (size_t bit = 0; bit < 8 * kVerdictBytes; ++bit) {
    Verdict verdict = both.accepting.verdict(AuthResult::kAccepted);
    verdict[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(both.connecting.check_verdict(verdict).is_ok()) << bit;
  }
}

TEST(Authenticate, StrangersAndOtherVersionsAreToldApart) {
  Handshake handshake(Side::kAccepting, kCredentials);
  Hello http{};
  const std::string_view request = "GET / HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n";
  std::copy_n(as_bytes(request).begin(), http.size(), http.begin());
  EXPECT_EQ(handshake.on_hello(http).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(Handshake::is_hello(http));
  Hello newer = Handshake(Side::kConnecting, kCredentials).hello();
  newer[3] = std::byte{3};
  const Status other_version = handshake.on_hello(newer);
  EXPECT_TRUE(Handshake::is_hello(newer));
  EXPECT_EQ(other_version.code(), StatusCode::kDataLoss);
  EXPECT_NE(other_version.message().find("version 3, expected 2"), std::string::npos) << other_version;
}

}  // namespace
}  // namespace byteps::transport
