#include "node/peer_listener.h"

#include <algorithm>
#include <utility>

#include "node/host.h"
#include "node/transports.h"
#include "transport/epoll_loop.h"

namespace byteps::node {

Result<std::unique_ptr<PeerListener>> PeerListener::create(const NodeConfig& config, const std::string& ip,
                                                           uint16_t port, Result<RdmaCards> cards) {
  std::unique_ptr<PeerListener> self(new PeerListener(config, std::move(cards)));
  auto loop = transport::EpollLoop::create("bps-doctor");
  if (!loop) return loop.status();
  self->loop_ = std::move(*loop);
  BPS_RETURN_IF_ERROR(self->open(ip, port));
  return self;
}

PeerListener::PeerListener(const NodeConfig& config, Result<RdmaCards> cards)
    : tcp_(make_tcp(config)), rdma_(make_rdma(config, std::move(cards))), rdma_status_(rdma_->viable()) {}

PeerListener::~PeerListener() {
  if (loop_) loop_->stop();
  tcp_listener_.reset();
  rdma_listener_.reset();
  echoes_.clear();
}

Status PeerListener::open(const std::string& ip, uint16_t port) {
  Status status;
  loop_->run_and_wait([&] {
    if (rdma_status_.is_ok()) open_rdma(ip);
    facts_ = encode(PeerFacts{.host = host_name(),
                              .rdma_address = rdma_listener_ ? rdma_listener_->address().to_string() : "",
                              .why_no_rdma = rdma_status_.message(),
                              .has_no_rdma_device = rdma_status_.code() == StatusCode::kUnimplemented});
    auto listener =
        tcp_->listen(*loop_, {ip, port}, [this](auto connection) { adopt(std::move(connection)); });
    status = listener.status();
    if (!status.is_ok()) return;
    tcp_listener_ = std::move(*listener);
    address_ = tcp_listener_->address();
  });
  return status;
}

void PeerListener::open_rdma(const std::string& ip) {
  auto listener = rdma_->listen(*loop_, {ip, 0}, [this](auto connection) { adopt(std::move(connection)); });
  rdma_status_ = listener.status();
  if (listener) rdma_listener_ = std::move(*listener);
}

void PeerListener::adopt(std::unique_ptr<transport::Connection> connection) {
  echoes_.push_back(std::make_unique<PeerEcho>(std::move(connection), facts_,
                                               [this](const PeerEcho& echo) { remove(echo); }));
  echoes_.back()->start();
}

void PeerListener::remove(const PeerEcho& echo) {
  report(echo.peer() + ": " + std::to_string(echo.frames()) + " frames echoed");
  const auto found = std::ranges::find_if(echoes_, [&](const auto& each) { return each.get() == &echo; });
  // Destroyed later, because it is the caller.
  loop_->post([doomed = std::move(*found)] {});
  echoes_.erase(found);
}

void PeerListener::report(std::string event) {
  MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  std::exchange(news_, std::make_shared<EventFlag>())->set();
}

Result<std::string> PeerListener::next(TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  while (true) {
    std::shared_ptr<EventFlag> news;
    {
      MutexLock lock(mutex_);
      if (!events_.empty()) {
        std::string event = std::move(events_.front());
        events_.pop_front();
        return event;
      }
      news = news_;
    }
    BPS_RETURN_IF_ERROR(wait_for(*news, deadline_us, keep_waiting));
  }
}

}  // namespace byteps::node
