// Fixture of the tests that every transport must pass (conformance_test.cc). A test program
// instantiates the suite with its transports.
#pragma once

#include "transport/harness.h"

namespace byteps::transport {

// A transport to test and its options.
struct TransportCase {
  const char* name;
  bool two_loops;
  const char* address = nullptr;  // address to listen at; null: inproc
  // Creates the transport of the connecting (kA) or listening (kB) end; both may share state in
  // `context`.
  std::function<std::unique_ptr<Transport>(int side, std::shared_ptr<void>& context)> make = {};
  // The loops of both ends; empty: EpollLoops.
  std::function<std::unique_ptr<EventLoop>(std::shared_ptr<void>& context)> loop = {};
  bool lends = false;               // payloads are in the transport's memory (Arrival::payload)
  bool shares_reply_space = false;  // whether Arrival::reply_space is set
  bool comes_again = false;         // after a reset, the connecting end is accepted once more
  int many = 1000;                  // connections enough to find a leak; fewer where each takes long
};

class Conformance : public testing::TestWithParam<TransportCase> {
 public:
  static constexpr int kA = 0;
  static constexpr int kB = 1;

 protected:
  Conformance() {
    loops_[kA] = new_loop();
    if (GetParam().two_loops) loops_[kB] = new_loop();
    if (GetParam().address) {
      for (int side : {kA, kB}) transports_[side] = GetParam().make(side, context_);
      acceptor_ = std::make_unique<Acceptor>(*transports_[kB], loop(kB), Address{GetParam().address, 0});
    }
    connect(ends_);
  }
  ~Conformance() override {
    destroy(kA);
    destroy(kB);
  }

  std::unique_ptr<EventLoop> new_loop() {
    if (GetParam().loop) return GetParam().loop(context_);
    return make_loop();
  }

  using Ends = std::array<std::unique_ptr<Connection>, 2>;
  void connect(Ends& ends) {
    if (!transports_[kA]) {
      std::tie(ends[kA], ends[kB]) = make_inproc_pair(loop(kA));
      return;
    }
    auto connected = connect_and_wait(*transports_[kA], loop(kA), acceptor_->address(), soon_us());
    ASSERT_TRUE(connected.is_ok()) << connected.status();
    ends[kA] = std::move(*connected);
    ends[kB] = acceptor_->take();
    ASSERT_TRUE(ends[kB]);
  }

  EventLoop& loop(int side) { return loops_[side] ? *loops_[side] : *loops_[kA]; }
  Connection& end(int side) { return *ends_[side]; }
  // In which both ends may be destroyed, so that no connection comes that the test has not asked for.
  std::array<int, 2> order(int round) const {
    if (GetParam().comes_again) return {kA, kB};
    return {round % 2, 1 - round % 2};
  }
  void start(int side) {
    run_on(loop(side), [&] { end(side).start(&recorders_[side]); });
  }
  void start_both() {
    start(kA);
    start(kB);
  }
  void destroy(int side) {
    run_on(loop(side), [&] { ends_[side].reset(); });
  }
  // `payload` must stay valid until on_sent.
  void send(int side, std::string_view head, std::string_view payload = {}) {
    run_on(loop(side), [&] { end(side).send(as_bytes(head), payload_of(payload), sent_.expect_one()); });
  }
  void expect_all_sent() {
    for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
  }

  // Outlive the connections, which call them back last.
  SentLog sent_;
  std::array<Recorder, 2> recorders_;
  std::shared_ptr<void> context_;
  std::array<std::unique_ptr<EventLoop>, 2> loops_;
  std::array<std::unique_ptr<Transport>, 2> transports_;
  std::unique_ptr<Acceptor> acceptor_;
  Ends ends_;
};

}  // namespace byteps::transport
