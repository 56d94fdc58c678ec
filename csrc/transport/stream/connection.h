// A connection over an authenticated stream socket. Contract: transport.h.
//
// Does not notice peers that are stopped while their kernel still answers; heartbeats of the
// cluster layer do.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "transport/epoll_loop.h"
#include "transport/stream/frame_reader.h"
#include "transport/stream/rate_limit.h"
#include "transport/stream/send_queue.h"
#include "transport/transport.h"

namespace byteps::transport {

class StreamConnection final : public Connection, private FdHandler, private TurnHandler {
 public:
  // `fd` is connected, non-blocking and carries only frames from here on. `peer`: see
  // Connection::peer.
  StreamConnection(EventLoop& loop, UniqueFd fd, std::string peer, const FrameLimits& limits);
  ~StreamConnection() override;

  void start(Receiver* receiver) override;
  void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) override;
  void pace(uint64_t bytes_per_s) override;
  std::optional<SentTraffic> sent_traffic() override;
  void limit_silence(TimeUs limit_us) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return false; }
  bool was_reset() const override { return was_reset_; }
  bool open() const { return fd_.valid(); }

 private:
  void on_ready(uint32_t epoll_events) override;
  void on_turn() override;
  void read_frames();
  void sleep_until_worthwhile();
  bool may_leave_unread();
  void write_frames();
  void on_end_of_stream();
  void on_write_error(int error_number);
  Status update_interest();
  void request_turn();
  void continue_closing();
  Status broken(const char* what, int error_number);
  void end(const Status& why);
  void report(const Status& why);
  void shut(const Status& why);

  EpollLoop& loop_;
  UniqueFd fd_;
  const std::string peer_;
  Receiver* receiver_ = nullptr;
  FrameReader reader_;
  SendQueue queue_;
  Status error_;                      // the reason why nothing can be written any more
  std::optional<Status> unreported_;  // the connection ended before start()
  uint32_t interest_ = 0;             // events that the loop watches for
  int wake_bytes_ = 1;                // see wake_at()
  bool may_leave_unread_ = false;     // stays true
  bool blocked_ = false;              // the kernel's send buffer is full
  bool closing_ = false;              // close_when_sent() was called
  bool turn_requested_ = false;
  bool in_callback_ = false;
  bool was_reset_ = false;
  uint64_t written_bytes_ = 0;  // bytes written in total
  RateLimit rate_limit_;
  std::optional<GraceWait> closing_wait_;
  EventLoop::TimerId deadline_ = 0;
};

}  // namespace byteps::transport
