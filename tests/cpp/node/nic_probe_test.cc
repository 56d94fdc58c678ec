#include "node/nic_probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>

#include "protocol/nic_probe.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::node {
namespace {

constexpr uint32_t kEpoch = 4711;

// TCP that counts the connections which it is asked for.
class CountingTransport final : public transport::Transport {
 public:
  CountingTransport(std::unique_ptr<transport::Transport> tcp, std::atomic<uint32_t>& connections)
      : tcp_(std::move(tcp)), connections_(connections) {}
  const char* name() const override { return tcp_->name(); }
  Status viable() const override { return tcp_->viable(); }
  Result<std::unique_ptr<transport::Listener>> listen(transport::EventLoop& loop,
                                                      const transport::Address& address,
                                                      transport::AcceptCallback on_accept) override {
    return tcp_->listen(loop, address, std::move(on_accept));
  }
  void connect(transport::EventLoop& loop, const transport::Address& address, transport::ConnectLimits limits,
               transport::ConnectCallback on_done) override {
    ++connections_;
    tcp_->connect(loop, address, limits, std::move(on_done));
  }

 private:
  const std::unique_ptr<transport::Transport> tcp_;
  std::atomic<uint32_t>& connections_;
};

// Processes that measure with each other's help, all in this one, over the loopback interface.
class NicProbeTest : public testing::Test {
 protected:
  NicProbeTest() {
    transport::TcpOptions options;
    options.credentials = {"secret", "job"};
    tcp_ = std::make_unique<CountingTransport>(transport::make_tcp_transport(std::move(options)),
                                               num_connections_);
    control_ = std::move(transport::EpollLoop::create("control").value());
  }
  ~NicProbeTest() override {
    for (const auto& probe : probes_) probe->stop();
    for (const auto& loop : loops_) loop->stop();
    control_->stop();
  }

  // Adds a process with this number of loops.
  protocol::ProbeHelper add(int num_loops, uint32_t epoch = kEpoch) {
    std::vector<transport::EventLoop*> loops;
    for (int i = 0; i < num_loops; ++i) {
      loops_.push_back(std::move(transport::EpollLoop::create("data").value()));
      loops.push_back(loops_.back().get());
    }
    probes_.push_back(std::make_unique<NicProbe>(*tcp_, *control_, loops, epoch));
    return {probes_.back()->listen("127.0.0.1").value()};
  }
  protocol::ProbeDone measure(NicProbe& probe, std::vector<protocol::ProbeHelper> helpers,
                              uint32_t connections = 2) {
    std::promise<protocol::ProbeDone> done;
    control_->post([&] {
      probe.measure({1, connections, helpers}, [&](protocol::ProbeDone result) { done.set_value(result); });
    });
    return done.get_future().get();
  }

  std::atomic<uint32_t> num_connections_ = 0;
  std::unique_ptr<transport::Transport> tcp_;
  std::unique_ptr<transport::EventLoop> control_;
  std::vector<std::unique_ptr<transport::EventLoop>> loops_;
  std::vector<std::unique_ptr<NicProbe>> probes_;
};

TEST(DescribeCards, NamesSpeedsConnectionsAndHosts) {
  const auto node = [](const char* host, uint32_t mbps, size_t shards) {
    protocol::NodeInfo info;
    info.host = host;
    info.nic_mbps = mbps;
    info.num_threads = 2;
    info.endpoints = {{"tcp", std::vector<std::string>(shards)}};
    return info;
  };
  EXPECT_EQ(describe_cards({node("a", 200, 2), node("b", 100, 1), node("c", 200, 2), node("d", 200, 8)}),
            "100 Mbit/s: b, 200 Mbit/s: a and c and 200 Mbit/s with 8 connections: d");
  EXPECT_EQ(describe_cards({node("a", 0, 2)}), "unknown: a");
}

TEST_F(NicProbeTest, HasAnAddressForEachLoop) { EXPECT_EQ(add(3).addresses.size(), 3u); }

TEST_F(NicProbeTest, MeasuresWithSeveralHelpersAndAgain) {
  add(2);
  const std::vector<protocol::ProbeHelper> helpers = {add(1), add(3)};
  for (int i = 0; i < 2; ++i) {
    const protocol::ProbeDone done = measure(*probes_[0], helpers);
    EXPECT_EQ(done.round, 1u);
    EXPECT_GT(done.bytes_per_s, 1'000'000u);
  }
}

TEST_F(NicProbeTest, MeasuresWithAsManyConnectionsAsAreOrdered) {
  const auto helper = add(3);
  add(2);
  for (const uint32_t connections : {1u, 2u, 3u, 8u}) {
    num_connections_ = 0;
    const protocol::ProbeDone done = measure(*probes_[1], {helper}, connections);
    EXPECT_EQ(num_connections_, connections);
    EXPECT_GT(done.bytes_per_s, 1'000'000u);
    EXPECT_GT(done.rtt_us, 0u);
    EXPECT_LT(done.rtt_us, 1'000'000u);
  }
}

TEST_F(NicProbeTest, ProcessesMayMeasureAndHelpAtOnce) {
  const auto first = add(1);
  const auto second = add(1);
  auto other = std::async(std::launch::async, [&] { return measure(*probes_[1], {first}); });
  EXPECT_GT(measure(*probes_[0], {second}).bytes_per_s, 0u);
  EXPECT_GT(other.get().bytes_per_s, 0u);
}

TEST_F(NicProbeTest, HelpersThatAreGoneOrNowhereLeaveTheRest) {
  add(1);
  const auto good = add(1);
  const auto gone = add(1);
  probes_[2]->stop();
  EXPECT_GT(measure(*probes_[0], {good, gone, {{"not an address"}}, {{}}}).bytes_per_s, 0u);
  EXPECT_EQ(measure(*probes_[0], {{{"not an address"}}}).bytes_per_s, 0u);
  EXPECT_EQ(measure(*probes_[0], {}).bytes_per_s, 0u);
}

TEST_F(NicProbeTest, NobodyHelpsAnotherJob) {
  add(1);
  EXPECT_EQ(measure(*probes_[0], {add(1, kEpoch + 1)}).bytes_per_s, 0u);
}

TEST_F(NicProbeTest, ReportsNothingOnceStopped) {
  add(1);
  const auto helper = add(1);
  auto reported = std::make_shared<std::atomic<bool>>(false);
  control_->run_and_wait([&] {
    probes_[0]->measure({1, 1, {helper}}, [reported](protocol::ProbeDone) { *reported = true; });
    probes_[0]->stop();
  });
  loops_[0]->run_and_wait([] {});
  control_->run_and_wait([] {});
  EXPECT_FALSE(*reported);
}

// A hub that breaks the protocol of probes.
class Rogue final : public transport::Receiver {
 public:
  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::discard();
  }
  Status on_frame(transport::Connection&, const transport::Arrival&, Bytes) override { return Status::ok(); }
  void on_closed(transport::Connection&, const Status& why) override { closed.set_value(why); }

  std::promise<Status> closed;
};

TEST_F(NicProbeTest, FramesThatAreNoProbesCloseTheConnection) {
  const auto helper = add(1);
  const auto loop = std::move(transport::EpollLoop::create("rogue").value());
  protocol::DataHead good;
  good.type = protocol::DataType::kProbe;
  good.epoch = kEpoch;
  good.bytes = 4096;
  struct Case {
    const char* what;
    std::function<void(protocol::DataHead&)> spoil;
    size_t payload_bytes;
  };
  const Case cases[] = {
      {"another epoch", [](auto& head) { head.epoch = 1; }, 4096},
      {"another type", [](auto& head) { head.type = protocol::DataType::kPushPull; }, 4096},
      {"more than the head says", [](auto&) {}, 8192},
      {"nothing", [](auto& head) { head.bytes = 0; }, 0},
      {"too much", [](auto& head) { head.bytes = protocol::kMaxProbeFrameBytes + 4096; },
       protocol::kMaxProbeFrameBytes + 4096},
  };
  const std::vector<std::byte> payload(protocol::kMaxProbeFrameBytes + 4096);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    protocol::DataHead head = good;
    c.spoil(head);
    Rogue rogue;
    std::unique_ptr<transport::Connection> connection;
    loop->run_and_wait([&] {
      tcp_->connect(
          *loop, *transport::parse_address(helper.addresses[0]), now_us() + 10'000'000, [&](auto made) {
            connection = std::move(made.value());
            connection->start(&rogue);
            connection->send(protocol::encode(head), {Bytes(payload).first(c.payload_bytes), {}}, nullptr);
          });
    });
    EXPECT_FALSE(rogue.closed.get_future().get().is_ok());
    loop->run_and_wait([&] { connection.reset(); });
  }
}

TEST(DescribeCards, SaysWhichMachinesHaveWhichSpeed) {
  std::vector<protocol::NodeInfo> nodes(4);
  const char* hosts[] = {"a", "b", "c", "a"};
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].host = hosts[i];
    nodes[i].nic_mbps = i == 1 ? 100 : i == 2 ? 0 : 200;
  }
  EXPECT_EQ(describe_cards(nodes), "unknown: c, 100 Mbit/s: b and 200 Mbit/s: a");
}

}  // namespace
}  // namespace byteps::node
