#include "node/peer_check.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "node/peer_connection.h"
#include "node/peer_listener.h"
#include "support/fake_nic.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::node {
namespace {

using transport::rdma::FakeFabric;
using transport::rdma::FakeNicOptions;

constexpr TimeUs kStepUs = 20'000'000;

NodeConfig config_with(const std::string& secret) {
  NodeConfig config;
  config.secret = secret;
  config.job_id = "job";
  return config;
}

bool keep_waiting() { return true; }

// The peer checks of two machines, in one process, over the loopback interface.
class PeerCheckTest : public testing::Test {
 protected:
  RdmaCards cards(const std::vector<FakeNicOptions>& all) {
    RdmaCards cards;
    for (const FakeNicOptions& each : all) cards.push_back(fabric_.make_nic(each));
    return cards;
  }
  void listen(Result<RdmaCards> cards) {
    listener_ = std::move(PeerListener::create(config_, "127.0.0.1", 0, std::move(cards)).value());
  }
  Result<PeerReport> check(Result<RdmaCards> cards) {
    return check_peer(config_, listener_->address(), std::move(cards), kStepUs, keep_waiting);
  }

  FakeFabric fabric_;
  const NodeConfig config_ = config_with("secret");
  std::unique_ptr<PeerListener> listener_;
};

TEST_F(PeerCheckTest, EachCardOfTheAskingEndIsTriedWithItsCounterpart) {
  listen(cards({{.device = "there0"}, {.device = "there1"}}));
  const auto report = check(cards({{.device = "here0"}, {.device = "here1"}}));
  ASSERT_TRUE(report) << report.status();
  EXPECT_GT(report->tcp.round_trip_us, 0);
  EXPECT_GT(report->tcp.bytes_per_s, 0);
  ASSERT_EQ(report->rails.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const PeerRail& rail = report->rails[i];
    EXPECT_TRUE(rail.status.is_ok()) << rail.status;
    EXPECT_NE(rail.own.find("here" + std::to_string(i)), std::string::npos) << rail.own;
    EXPECT_NE(rail.other.find("there" + std::to_string(i)), std::string::npos) << rail.other;
    EXPECT_GT(rail.speed.round_trip_us, 0);
    EXPECT_GT(rail.speed.bytes_per_s, 0);
  }
  EXPECT_GE(fabric_.statistics().bytes, 2u * 2 * 8 * kMaxPeerEchoBytes) << "both ways, of both cards";
  EXPECT_EQ(fabric_.statistics().mistakes(), 0u);
}

TEST_F(PeerCheckTest, TheListenerSaysWhoHasCome) {
  listen(cards({{.device = "there0"}}));
  ASSERT_TRUE(check(cards({{.device = "here0"}})));
  const auto by_tcp = listener_->next(now_us() + kStepUs, keep_waiting);
  ASSERT_TRUE(by_tcp) << by_tcp.status();
  EXPECT_TRUE(by_tcp->starts_with("tcp 127.0.0.1:")) << *by_tcp;
  const auto by_rdma = listener_->next(now_us() + kStepUs, keep_waiting);
  ASSERT_TRUE(by_rdma) << by_rdma.status();
  EXPECT_TRUE(by_rdma->starts_with("rdma 127.0.0.1:")) << *by_rdma;
  EXPECT_NE(by_rdma->find("here0"), std::string::npos) << *by_rdma;
  EXPECT_EQ(listener_->next(now_us(), keep_waiting).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(PeerCheckTest, CardsThatCannotReachEachOtherFailAtTheIntroduction) {
  listen(cards({{.device = "there0", .is_ethernet = false}}));
  const auto report = check(cards({{.device = "here0"}}));
  ASSERT_TRUE(report) << report.status();
  ASSERT_EQ(report->rails.size(), 1u);
  const std::string& why = report->rails[0].status.message();
  EXPECT_TRUE(why.starts_with("introduction: ")) << why;
  EXPECT_NE(why.find("expected both to be Ethernet, or both InfiniBand"), std::string::npos) << why;
}

TEST_F(PeerCheckTest, AnEndWithoutRdmaSaysWhy) {
  listen(unavailable("the cable is out"));
  const auto other = check(cards({{}}));
  ASSERT_TRUE(other) << other.status();
  EXPECT_EQ(other->rdma.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(other->rdma.message().ends_with("has no RDMA: the cable is out")) << other->rdma;
  EXPECT_TRUE(other->rails.empty());

  listen(cards({{}}));
  const auto own = check(unimplemented("no device"));
  ASSERT_TRUE(own) << own.status();
  EXPECT_EQ(own->rdma.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(own->rdma.message(), "no device");
}

TEST_F(PeerCheckTest, AnotherSecretIsNotChecked) {
  listen(unimplemented("no device"));
  const auto report = check_peer(config_with("other"), listener_->address(), unimplemented("no device"),
                                 kStepUs, keep_waiting);
  EXPECT_EQ(report.status().code(), StatusCode::kPermissionDenied);
}

TEST_F(PeerCheckTest, NobodyThereIsAnErrorWhenTheTimeIsUp) {
  listen(unimplemented("no device"));
  const transport::Address address = listener_->address();
  listener_.reset();
  const auto report = check_peer(config_, address, unimplemented("no device"), 200'000, keep_waiting);
  EXPECT_EQ(report.status().code(), StatusCode::kUnavailable) << report.status();
  EXPECT_NE(report.status().message().find(address.to_string()), std::string::npos) << report.status();
}

TEST_F(PeerCheckTest, OtherBytesAreNotAnswered) {
  listen(unimplemented("no device"));
  class UnverifiedConnection final : public transport::Receiver {
   public:
    Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
      return data_loss("an answer");
    }
    Status on_frame(transport::Connection&, const transport::Arrival&, Bytes) override {
      return data_loss("an answer");
    }
    void on_closed(transport::Connection&, const Status& why) override {
      status = why;
      closed.set();
    }
    Status status;
    EventFlag closed;
  } stranger;
  transport::TcpOptions options;
  options.credentials = {"secret", "job"};
  const auto tcp = transport::make_tcp_transport(std::move(options));
  const auto loop = std::move(transport::EpollLoop::create("stranger").value());
  std::unique_ptr<transport::Connection> connection;
  loop->post([&] {
    tcp->connect(*loop, listener_->address(), now_us() + kStepUs, [&](auto made) {
      connection = std::move(made.value());
      connection->start(&stranger);
      connection->send(as_bytes("byteps doctor 0: ask"), {}, nullptr);
    });
  });
  ASSERT_EQ(stranger.closed.wait(now_us() + kStepUs), EventFlag::Wake::kSet);
  EXPECT_EQ(stranger.status.code(), StatusCode::kUnavailable) << stranger.status;
  loop->stop();
}

TEST(PeerFacts, AreTheSameAtTheOtherEnd) {
  const auto facts = decode_peer_facts(encode(
      {.host = "a", .rdma_address = "10.0.0.1:9", .why_no_rdma = "two\nlines", .has_no_rdma_device = true}));
  ASSERT_TRUE(facts) << facts.status();
  EXPECT_EQ(facts->host, "a");
  EXPECT_EQ(facts->rdma_address, "10.0.0.1:9");
  EXPECT_EQ(facts->why_no_rdma, "two?lines");
  EXPECT_TRUE(facts->has_no_rdma_device);
}

TEST(PeerFacts, OfSomethingElseAreRefused) {
  for (const char* text : {"", "host", "host\naddress"}) {
    EXPECT_EQ(decode_peer_facts(text).status().code(), StatusCode::kDataLoss) << text;
  }
  EXPECT_EQ(decode_peer_facts("\x1b[2J\n\n\n")->host, "?[2J");
}

}  // namespace
}  // namespace byteps::node
