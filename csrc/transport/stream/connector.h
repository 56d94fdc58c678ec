// One call of Transport::connect: connects, authenticates and retries.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "transport/epoll_loop.h"
#include "transport/stream/handshake.h"
#include "transport/stream/stream.h"

namespace byteps::transport {

// Lives on its loop and is owned by its deadline's timer; destroyed after `on_done`, or with the
// loop.
class Connector final : private FdHandler, public std::enable_shared_from_this<Connector> {
 public:
  // Loop thread.
  static void start(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                    ConnectLimits limits, ConnectCallback on_done);
  ~Connector() override;

 private:
  Connector(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
            TimeUs refusals_us, ConnectCallback on_done);
  void on_ready(uint32_t epoll_events) override;
  void attempt();
  Status begin_connect();
  Status on_connected();
  // The outcome of a connect(), as an error number.
  Status from_connect(int error);
  void give_up();
  void fail(const Status& why);
  void retry(const Status& why);
  void drop_socket();
  void finish(Result<std::unique_ptr<Connection>> result);

  EpollLoop& loop_;
  const std::shared_ptr<const StreamKind> kind_;
  const Address address_;
  const TimeUs started_us_;
  const TimeUs refusals_us_;
  ConnectCallback on_done_;
  UniqueFd fd_;
  UniqueFd passed_fd_;
  std::optional<SocketHandshake> handshake_;  // set once connected
  Status last_failure_;                       // of the last attempt
  bool hopeless_ = false;                     // a retry does not help
  TimeUs refused_since_us_ = kNever;          // and by all attempts since then
  TimeUs pause_us_;
  EventLoop::TimerId deadline_ = 0;
  EventLoop::TimerId next_attempt_ = 0;
  EventLoop::TimerId no_answer_ = 0;
};

}  // namespace byteps::transport
