// A connection that moves frames by RDMA. Contract: transport.h. Data flow: frame_sender.h,
// frame_receiver.h.
//
// It starts with an authenticated TCP connection, through which both ends exchange their queue
// pairs' parameters (bootstrap.h). Then each sends a first message by RDMA, so that a path that
// does not work is detected here. The TCP connection stays open: its end tells a process at once
// that its peer has died.
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

// Message for peers that can be reached by TCP, but not by RDMA.
inline constexpr const char* kNoRdmaPath =
    "no answer by RDMA, though there is one by TCP: check that the two network cards reach each other: the "
    "same network, GIDs of the same kind (BYTEPS_RDMA_GID_INDEX), UDP port 4791 not filtered (RoCE v2)";

struct ConnectionOptions {
  uint64_t max_payload_bytes = uint64_t{1} << 30;
  // Longest time to poll for completions before sleeping. Polls only if completions have recently
  // come at shorter intervals.
  TimeUs spin_us = 0;
};

class RdmaConnection final : public Connection, private Receiver, private TurnHandler, private NicClient {
 public:
  // Chooses this end's NIC for an offer.
  using ChooseRail = UniqueFunction<Result<std::shared_ptr<NicLoop>>(const EndpointOffer&)>;
  // Called once, on the loop, with ok or the reason why the connection cannot be used. The
  // connection may be destroyed only after this call has returned.
  using OnReady = UniqueFunction<void(const Status&)>;

  RdmaConnection(std::unique_ptr<Connection> tcp, const ConnectionOptions& options);
  ~RdmaConnection() override;

  // Call one of these two, once.
  void introduce(std::shared_ptr<NicLoop> nic_loop, uint16_t rail, OnReady on_ready);
  void await_introduction(ChooseRail choose, OnReady on_ready);

  void start(Receiver* receiver) override;
  void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) override;
  void return_lease(LeaseId lease) override;
  // While writes are in flight, the NIC detects a silent peer by itself (BYTEPS_RDMA_TIMEOUT);
  // otherwise TCP does.
  void limit_silence(TimeUs limit_us) override { tcp_->limit_silence(limit_us); }
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return false; }

  // For fault injection by tests. Null once closed.
  QueuePair* queue_pair() const { return queue_pair_.get(); }

 private:
  // Number of receive requests that are posted again at a time.
  static constexpr uint32_t kArrivalsPerPost = 16;
  // Enough for every record that the peer can have in flight, its reports of consumed units, and
  // receive requests that wait to be posted again.
  static constexpr uint32_t kMaxArrivals = kRingUnits + 16 + kArrivalsPerPost;

  // Callbacks of the TCP connection.
  Result<ReceiveBuffer> on_head(Connection& tcp, const Arrival& arrival) override;
  Status on_frame(Connection& tcp, const Arrival& arrival, Bytes payload) override;
  void on_closed(Connection& tcp, const Status& why) override;
  // Callbacks of the NIC.
  void on_completions() override;
  void on_nic_gone(const Status& why) override;
  void on_turn() override;

  // Defined in introduction.cc.
  Status prepare(std::shared_ptr<NicLoop> nic_loop);
  EndpointOffer offer(uint16_t rail) const;
  Status on_offer(const EndpointOffer& other);
  Status accept(const EndpointOffer& other);
  Status open(const EndpointOffer& other);
  Status on_first_message();

  Status work();
  Result<size_t> poll();
  Status on_completion(const Completion& completion);
  bool should_spin();
  void request_turn();
  void continue_closing();
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
  ChooseRail choose_;  // set at the accepting end until the offer comes
  OnReady on_ready_;

  std::shared_ptr<NicLoop> nic_loop_;
  Arena::Allocation memory_;  // the staging ring, then the inbox
  std::unique_ptr<QueuePair> queue_pair_;
  std::optional<FrameSender> sender_;
  std::optional<FrameReceiver> frame_receiver_;

  Receiver* receiver_ = nullptr;
  Status error_;                      // the reason why nothing can be sent any more
  std::optional<Status> unreported_;  // the connection ended before start()
  uint32_t arrivals_owed_ = 0;
  bool has_peer_reply_ = false;  // the peer's offer or refusal has come
  bool introduced_ = false;      // the peer's first message by RDMA has come
  bool tcp_ended_ = false;       // the TCP connection has ended
  bool closed_ = false;
  bool armed_ = false;
  bool turn_requested_ = false;
  bool working_ = false;
  bool asked_again_ = false;  // a turn was requested since the last pass of work()
  bool in_callback_ = false;
  uint64_t completions_ = 0;               // number of completions so far
  std::optional<GraceWait> closing_wait_;  // set by close_when_sent()
  EventLoop::TimerId deadline_ = 0;
  // State of polling without sleeping.
  TimeUs idle_since_us_ = 0;
  TimeUs mean_wait_us_;
};

}  // namespace byteps::transport::rdma
