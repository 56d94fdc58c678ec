// A connection that moves frames by RDMA. Contract: transport.h; what goes where: outgoing.h, incoming.h.
//
// It begins on a TCP connection that has proved the job's secret: both ends tell each other about their queue pairs
// (bootstrap.h), and each sends a first word by RDMA, so that a path that does not work is found here. The TCP connection
// stays for as long as the other one: its end is how a process learns at once that the other has died.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/authenticate.h"
#include "transport/rdma/bootstrap.h"
#include "transport/rdma/frame_receiver.h"
#include "transport/rdma/frame_sender.h"
#include "transport/rdma/rail.h"
#include "transport/transport.h"

namespace byteps::transport::rdma {

// What to say where TCP works and RDMA does not.
inline constexpr const char* kNoWayByRdma =
    "no answer by RDMA, though there is one by TCP: check that the two network cards reach each other: the "
    "same network, "
    "GIDs of the same kind (BYTEPS_RDMA_GID_INDEX), UDP port 4791 not filtered (RoCE v2)";

struct ConnectionOptions {
  uint64_t max_payload_bytes = uint64_t{1} << 30;
  // How long to look for completions before sleeping, at most, and only where they have been coming faster than that.
  TimeUs spin_us = 0;
};

class RdmaConnection final : public Connection, private Receiver, private TurnHandler, private NicClient {
 public:
  // Which of this end's cards meets an offer.
  using ChooseRail = UniqueFunction<Result<std::shared_ptr<NicLoop>>(const EndpointOffer&)>;
  // Once, on the loop: it can be used, or why not. It may be destroyed only after this call has returned.
  using OnReady = UniqueFunction<void(const Status&)>;

  RdmaConnection(std::unique_ptr<Connection> tcp, const ConnectionOptions& options);
  ~RdmaConnection() override;

  // One of these two, once.
  void introduce(std::shared_ptr<NicLoop> nic_loop, uint16_t rail, OnReady on_ready);
  void await_introduction(ChooseRail choose, OnReady on_ready);

  void start(Receiver* receiver) override;
  void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) override;
  void return_lease(LeaseId lease) override;
  // RDMA asks again by itself for what it has sent (BYTEPS_RDMA_TIMEOUT); while nothing is under way, TCP asks.
  void limit_silence(TimeUs limit_us) override { tcp_->limit_silence(limit_us); }
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return false; }

  // For tests, which break it. Null once closed.
  QueuePair* queue_pair() const { return queue_pair_.get(); }

 private:
  // Arrivals are posted again so many at a time.
  static constexpr uint32_t kArrivalsPerPost = 16;
  // For every record that the other end can have under way, for its words about what it has consumed, and for those that
  // are still to be posted again.
  static constexpr uint32_t kMaxArrivals = kRingUnits + 16 + kArrivalsPerPost;

  // Of the TCP connection.
  Result<ReceiveBuffer> on_head(Connection& tcp, const Arrival& arrival) override;
  Status on_frame(Connection& tcp, const Arrival& arrival, Bytes payload) override;
  void on_closed(Connection& tcp, const Status& why) override;
  // Of the card.
  void on_completions() override;
  void on_nic_gone(const Status& why) override;
  void on_turn() override;

  // introduction.cc
  Status prepare(std::shared_ptr<NicLoop> nic_loop);
  EndpointOffer offer(uint16_t rail) const;
  Status on_offer(const EndpointOffer& other);
  Status accept(const EndpointOffer& other);
  Status open(const EndpointOffer& other);
  Status on_first_word();

  Status work();
  Result<size_t> poll();
  Status on_completion(const Completion& completion);
  Status post_arrivals();
  bool should_spin();
  void request_turn();
  void go_on_closing();
  void end_if_over();
  void end_as_asked();
  void end(const Status& why);
  void report(const Status& why);
  void shut(const Status& why, bool written_is_sent);

  EventLoop& loop_;
  const ConnectionOptions options_;
  std::unique_ptr<Connection> tcp_;
  std::string peer_;
  Side side_ = Side::kAccepting;
  ChooseRail choose_;  // of the accepting end, until the offer comes
  OnReady on_ready_;

  std::shared_ptr<NicLoop> nic_loop_;
  Arena::Allocation memory_;  // staging, then inbox
  std::unique_ptr<QueuePair> queue_pair_;
  std::optional<FrameSender> sender_;
  std::optional<FrameReceiver> receiver_side_;

  Receiver* receiver_ = nullptr;
  Status error_;                      // why nothing can be sent any more
  std::optional<Status> unreported_;  // ended before start()
  uint32_t arrivals_owed_ = 0;
  bool has_met_ = false;     // the other end's offer or refusal has come
  bool introduced_ = false;  // and its first word by RDMA
  bool tcp_ended_ = false;   // the other end is gone
  bool closing_ = false;     // close_when_sent() was called
  bool closed_ = false;
  bool armed_ = false;
  bool turn_requested_ = false;
  bool working_ = false;
  bool asked_again_ = false;  // since the last look at everything
  bool in_callback_ = false;
  uint64_t completions_ = 0;  // so far
  std::optional<GraceWait> closing_wait_;
  EventLoop::TimerId deadline_ = 0;
  // Spinning.
  TimeUs idle_since_us_ = 0;
  TimeUs usual_wait_us_;
};

}  // namespace byteps::transport::rdma
