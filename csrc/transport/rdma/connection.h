// A connection that moves frames by RDMA. Contract: transport.h. Data flow: frame_sender.h,
// frame_receiver.h.
//
// It starts with an authenticated TCP connection, through which both ends exchange their queue
// pairs' parameters (bootstrap.h). Then each sends a first message by RDMA, so that a path that
// does not work is detected here. The TCP connection stays open: its end tells a process at once
// that its peer has died. A queue pair that fails is replaced by another one (renewal.cc), so the
// connection survives a network that is cut for longer than the cards send again.
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
  // Longest time without a path for RDMA, from the failure of a queue pair on; 0: none is replaced.
  TimeUs renewal_limit_us = 0;
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
  // A peer that is silent on TCP, too. The NIC detects by itself that writes do not arrive
  // (BYTEPS_RDMA_TIMEOUT); then another queue pair is tried.
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
  Status prepare_queue_pair();
  EndpointOffer offer() const;
  Status on_offer(const EndpointOffer& other);
  Status accept(const EndpointOffer& other);
  Status open(const EndpointOffer& other);
  Status on_first_message();

  // Defined in renewal.cc.
  void break_off(const Status& why);
  Status replace_queue_pair();
  Status try_again_later(const Status& why);
  Status on_renewal_message(Bytes message);
  Status on_renewal_request(uint32_t attempt);
  Status on_renewal_offer(const EndpointOffer& other);
  Status on_next_offer(const EndpointOffer& other);
  Status on_answer(const EndpointOffer& other);
  Status failed_at_other_end() const;
  Status go_on(uint32_t arrivals);
  Status on_path_renewed();

  Status work();
  Status send_and_receive();
  Result<size_t> poll();
  Status on_completion(const Completion& completion);
  Status on_failure(const Completion& completion);
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
  uint16_t rail_ = 0;
  std::optional<FrameSender> sender_;
  std::optional<FrameReceiver> frame_receiver_;

  Receiver* receiver_ = nullptr;
  Status error_;                      // the reason why nothing can be sent any more
  std::optional<Status> unreported_;  // the connection ended before start()
  uint32_t arrivals_owed_ = 0;
  uint32_t arrivals_posted_ = 0;  // receive requests that have not completed
  bool has_peer_reply_ = false;   // the peer's offer or refusal has come
  bool introduced_ = false;       // the peer's first message by this queue pair has come
  bool tcp_ended_ = false;        // the TCP connection has ended
  bool closed_ = false;
  bool armed_ = false;
  bool turn_requested_ = false;
  bool working_ = false;
  bool asked_again_ = false;  // a turn was requested since the last pass of work()
  bool in_callback_ = false;
  uint64_t completions_ = 0;               // number of completions so far
  std::optional<GraceWait> closing_wait_;  // set by close_when_sent()
  EventLoop::TimerId deadline_ = 0;
  // State of the renewal.
  uint32_t attempt_ = 0;                // number of queue pairs before this one
  uint32_t arrivals_ = 0;               // immediates received in all, modulo 2^32
  bool is_draining_ = false;            // the queue pair has failed; what it has received is taken from it
  std::optional<EndpointOffer> other_;  // accepting end: the last one that has come
  bool awaits_offer_ = false;           // connecting end: the answer to its own
  Status broken_;                       // why the last queue pair has failed; ok: there is a path
  TimeUs broken_since_us_ = 0;
  // The first failure since a write has completed, or nothing was to be written; 0: none. The limit
  // counts from it, so that queue pairs on which no write succeeds are not replaced for ever.
  TimeUs in_vain_since_us_ = 0;
  EventLoop::TimerId renewal_limit_ = 0;
  EventLoop::TimerId next_attempt_ = 0;
  // State of polling without sleeping.
  TimeUs idle_since_us_ = 0;
  TimeUs mean_wait_us_;
};

}  // namespace byteps::transport::rdma
