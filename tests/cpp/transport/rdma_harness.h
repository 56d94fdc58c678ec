// Helpers of the RDMA transport's tests: two connected ends with simulated NICs
// (support/fake_nic.h).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/fake_nic.h"
#include "transport/harness.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/resume/resuming_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport::rdma {

// One end of the test, which in reality is a process.
struct Process {
  std::vector<FakeNicOptions> cards = {{}};
  TimeUs spin_us = 0;
  TimeUs introduction_timeout_us = 10'000'000;
  // Of the TCP connections that the network resets; 0: they are not made anew.
  TimeUs resume_limit_us = 0;
  TimeUs renewal_limit_us = 0;  // 0: queue pairs that fail are not replaced
};

class RdmaTest : public testing::Test {
 protected:
  static constexpr int kA = 0;  // connects
  static constexpr int kB = 1;  // listens

  explicit RdmaTest(FakeFabricOptions options = {}) : fabric_(options) {}
  ~RdmaTest() override {
    for (const int side : {kA, kB}) destroy(side);
    acceptor_.reset();
    for (auto& loop : loops_) {
      if (loop) loop->stop();
    }
    transports_ = {};
    EXPECT_EQ(fabric_.statistics().mistakes(), expected_mistakes_);
  }

  void set_up(const Process& a = {}, const Process& b = {}) {
    make(kA, a);
    make(kB, b);
    acceptor_ = std::make_unique<Acceptor>(*transports_[kB], loop(kB), Address{"127.0.0.1", 0});
  }
  void set_up_and_connect(const Process& a = {}, const Process& b = {}) {
    set_up(a, b);
    ASSERT_NO_FATAL_FAILURE(connect());
  }
  void make(int side, const Process& process) {
    loops_[side] = make_loop();
    std::vector<std::unique_ptr<Nic>> nics;
    for (const FakeNicOptions& options : process.cards) {
      auto nic = fabric_.make_nic(options);
      cards_[side].push_back(nic.get());
      nics.push_back(std::move(nic));
    }
    transports_[side] = make_rdma_transport({.stream = {.credentials = test_credentials()},
                                             .spin_us = process.spin_us,
                                             .introduction_timeout_us = process.introduction_timeout_us,
                                             .renewal_limit_us = process.renewal_limit_us},
                                            std::move(nics), make_tcp(side, process.resume_limit_us));
  }
  static std::unique_ptr<Transport> make_tcp(int side, TimeUs resume_limit_us) {
    auto tcp = make_tcp_transport({.credentials = test_credentials()});
    if (resume_limit_us == 0) return tcp;
    return make_resuming_transport(std::move(tcp),
                                   {.nonce = static_cast<uint64_t>(side), .limit_us = resume_limit_us});
  }
  Result<std::unique_ptr<Connection>> try_connect() {
    return connect_and_wait(*transports_[kA], loop(kA), target_.value_or(acceptor_->address()), soon_us());
  }
  void connect() {
    auto connected = try_connect();
    ASSERT_TRUE(connected.is_ok()) << connected.status();
    ends_[kA] = std::move(*connected);
    ends_[kB] = acceptor_->take();
    ASSERT_TRUE(ends_[kB]);
  }

  // Another connection in place of the first one, with empty records.
  void connect_another() {
    for (const int side : {kA, kB}) {
      destroy(side);
      recorders_[side].seen.update([](Seen& seen) { seen = {}; });
    }
    connect();
  }

  EventLoop& loop(int side) { return *loops_[side]; }
  Connection& end(int side) { return *ends_[side]; }
  FakeNic& card(int side, size_t index = 0) { return *cards_[side].at(index); }
  void start(int side) {
    run_on(loop(side), [&] { end(side).start(&recorders_[side]); });
  }
  void start_both() {
    start(kA);
    start(kB);
  }
  void destroy(int side) {
    if (ends_[side]) run_on(loop(side), [&] { ends_[side].reset(); });
  }
  void send(int side, const std::string& head, const Payload& payload = {}) {
    run_on(loop(side), [&] { end(side).send(as_bytes(head), payload, sent_.expect_one()); });
  }
  void expect_all_sent() {
    for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
  }
  bool no_queue_pair_is_left(int side) {
    return eventually([&] { return card(side).statistics().live_queue_pairs == 0; });
  }
  // Does nothing if the end has none now.
  void break_queue_pair(int side) {
    run_on(loop(side), [&] {
      QueuePair* const pair = dynamic_cast<RdmaConnection&>(end(side)).queue_pair();
      if (pair != nullptr) pair->fail();
    });
  }

  uint64_t expected_mistakes_ = 0;
  FakeFabric fabric_;
  SentLog sent_;
  std::array<Recorder, 2> recorders_;
  std::array<std::unique_ptr<EventLoop>, 2> loops_;
  std::array<std::unique_ptr<Transport>, 2> transports_;
  std::array<std::vector<FakeNic*>, 2> cards_;
  std::unique_ptr<Acceptor> acceptor_;
  std::optional<Address> target_;  // nullopt: the acceptor
  std::array<std::unique_ptr<Connection>, 2> ends_;
};

inline bool mentions(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

}  // namespace byteps::transport::rdma
