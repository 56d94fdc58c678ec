#include "node/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/virtual_time.h"

namespace byteps::node {
namespace {

using protocol::NodeInfo;

// Answers each connect() with an error that names the transport, and remembers it.
class FakeTransport final : public transport::Transport {
 public:
  FakeTransport(std::string name, std::vector<std::string>& tried) : name_(std::move(name)), tried_(tried) {}
  const char* name() const override { return name_.c_str(); }
  Status viable() const override { return Status::ok(); }
  Result<std::unique_ptr<transport::Listener>> listen(transport::EventLoop&, const transport::Address&,
                                                      transport::AcceptCallback) override {
    return unimplemented("not used");
  }
  void connect(transport::EventLoop&, const transport::Address& address, transport::ConnectLimits,
               transport::ConnectCallback on_done) override {
    tried_.push_back(name_ + " " + address.to_string());
    on_done(unavailable(name_ + " fails"));
  }

 private:
  const std::string name_;
  std::vector<std::string>& tried_;
};

class RoutesTest : public testing::Test {
 protected:
  RoutesTest() {
    self_.machine = "m0";
    self_.rank = 0;
  }
  // `has`: names of the transports that this process has.
  Result<std::unique_ptr<Routes>> open(const std::vector<std::string>& has, bool requires_rdma = false) {
    const auto of = [&](const char* name) -> Result<std::unique_ptr<transport::Transport>> {
      if (std::ranges::find(has, name) == has.end()) return unimplemented(std::string("no ") + name);
      return std::unique_ptr<transport::Transport>(std::make_unique<FakeTransport>(name, tried_));
    };
    Transports transports;
    transports.push_back({.name = "shm",
                          .title = "shared memory",
                          .reach = Reach::kWorkersOfOneMachine,
                          .listen_ip = "@",
                          .is_expected = true,
                          .transport = of("shm")});
    transports.push_back({.name = "rdma",
                          .title = "RDMA",
                          .reach = Reach::kBetweenMachines,
                          .listen_ip = "10.0.0.1",
                          .is_required = requires_rdma,
                          .transport = of("rdma")});
    transports.push_back({.name = "tcp", .title = "TCP", .listen_ip = "10.0.0.1", .transport = of("tcp")});
    return Routes::open(NodeConfig(), std::move(transports));
  }
  static NodeInfo peer(const std::string& machine, const std::vector<std::string>& has,
                       protocol::Role role = protocol::Role::kWorker) {
    NodeInfo node;
    node.role = role;
    node.rank = 1;
    node.machine = machine;
    for (const std::string& name : has) node.endpoints.push_back({name, {"10.0.0.2:1", "10.0.0.2:2"}});
    return node;
  }
  // Connects to shard 1; returns the error, as every connection fails.
  std::string connect(Routes& routes, const NodeInfo& node) {
    tried_.clear();
    std::optional<Status> status;
    routes.connect(*loop_, self_, node, 1, [&](auto connection) { status = connection.status(); });
    return status ? status->message() : "no answer";
  }

  sim::VirtualTime time_{1};
  const std::unique_ptr<sim::VirtualLoop> loop_ = time_.make_loop("loop");
  NodeInfo self_;
  std::vector<std::string> tried_;
};

using Tried = std::vector<std::string>;

TEST_F(RoutesTest, TheBestTransportThatReachesThePeerIsTriedFirst) {
  const auto routes = open({"shm", "rdma", "tcp"}).value();
  const std::vector<std::string> all = {"shm", "rdma", "tcp"};
  EXPECT_EQ(connect(*routes, peer("m0", all)), "tcp fails");
  EXPECT_EQ(tried_, (Tried{"shm 10.0.0.2:2", "tcp 10.0.0.2:2"})) << "never RDMA within a machine";
  connect(*routes, peer("m1", all));
  EXPECT_EQ(tried_, (Tried{"rdma 10.0.0.2:2", "tcp 10.0.0.2:2"}));
  connect(*routes, peer("m0", all, protocol::Role::kServer));
  EXPECT_EQ(tried_, (Tried{"tcp 10.0.0.2:2"}));
}

TEST_F(RoutesTest, BothEndsNeedTheTransport) {
  const auto all = open({"shm", "rdma", "tcp"}).value();
  connect(*all, peer("m0", {"tcp"}));
  EXPECT_EQ(tried_, (Tried{"tcp 10.0.0.2:2"}));
  connect(*all, peer("m1", {"shm", "tcp"}));
  EXPECT_EQ(tried_, (Tried{"tcp 10.0.0.2:2"}));
  const auto only_tcp = open({"tcp"}).value();
  for (const char* machine : {"m0", "m1"}) {
    connect(*only_tcp, peer(machine, {"shm", "rdma", "tcp"}));
    EXPECT_EQ(tried_, (Tried{"tcp 10.0.0.2:2"}));
  }
}

TEST_F(RoutesTest, ARequiredTransportIsNotReplaced) {
  EXPECT_EQ(open({"tcp"}, true).status().message(), "BYTEPS_TRANSPORT is rdma: no rdma");
  const auto routes = open({"shm", "rdma", "tcp"}, true).value();
  EXPECT_EQ(connect(*routes, peer("m1", {"rdma", "tcp"})), "RDMA with rank 1 (host , pid 0): rdma fails");
  EXPECT_EQ(tried_, (Tried{"rdma 10.0.0.2:2"}));
  connect(*routes, peer("m1", {"tcp"}));
  EXPECT_EQ(tried_, Tried());
  connect(*routes, peer("m0", {"tcp"}));
  EXPECT_EQ(tried_, (Tried{"tcp 10.0.0.2:2"})) << "within a machine";
}

TEST_F(RoutesTest, APeerWithoutAnyKnownTransportIsAnError) {
  const auto routes = open({"shm", "rdma", "tcp"}).value();
  EXPECT_NE(connect(*routes, peer("m1", {"carrier pigeon"})).find("it offers none"), std::string::npos);
  EXPECT_EQ(tried_, Tried());
}

}  // namespace
}  // namespace byteps::node
