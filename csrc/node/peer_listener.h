// The end of `byteps doctor --listen`: listens as a node of a job does, over TCP and, if this
// machine has it, over RDMA, and echoes the frames of other machines' doctors (peer_check.h).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/annotations.h"
#include "base/config.h"
#include "base/event_flag.h"
#include "node/peer_connection.h"
#include "node/rdma.h"
#include "transport/transport.h"

namespace byteps::node {

// All methods: any thread.
class PeerListener {
 public:
  // Listens on `ip` and `port` (0: any). Without a secret only on loopback addresses. `cards`: the
  // cards for RDMA, or why there are none.
  static Result<std::unique_ptr<PeerListener>> create(const NodeConfig& config, const std::string& ip,
                                                      uint16_t port, Result<RdmaCards> cards);
  ~PeerListener();

  const transport::Address& address() const { return address_; }
  // Why it does not listen over RDMA; ok: it does.
  const Status& rdma() const { return rdma_status_; }
  // Describes the next connection that has ended: "rdma 10.0.0.2:9000 (...): 132 frames echoed".
  // Blocks until `deadline_us`. kDeadlineExceeded: none has ended by then. kAborted: interrupted.
  Result<std::string> next(TimeUs deadline_us, const KeepWaiting& keep_waiting);

 private:
  PeerListener(const NodeConfig& config, Result<RdmaCards> cards);
  Status open(const std::string& ip, uint16_t port);
  void open_rdma(const std::string& ip);
  void adopt(std::unique_ptr<transport::Connection> connection);
  void remove(const PeerEcho& echo);
  void report(std::string event);

  const std::unique_ptr<transport::Transport> tcp_;
  const std::unique_ptr<transport::Transport> rdma_;
  Status rdma_status_;
  std::unique_ptr<transport::EventLoop> loop_;
  transport::Address address_;

  // Used on the loop.
  std::string facts_;
  std::unique_ptr<transport::Listener> tcp_listener_;
  std::unique_ptr<transport::Listener> rdma_listener_;
  std::vector<std::unique_ptr<PeerEcho>> echoes_;

  Mutex mutex_;
  std::deque<std::string> events_ BPS_GUARDED_BY(mutex_);
  std::shared_ptr<EventFlag> news_ BPS_GUARDED_BY(mutex_) = std::make_shared<EventFlag>();
};

}  // namespace byteps::node
