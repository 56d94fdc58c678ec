// A listening socket and its connections that have not been authenticated yet.
#pragma once

#include <list>
#include <memory>

#include "base/unique_fd.h"
#include "transport/epoll_loop.h"
#include "transport/stream/handshake.h"
#include "transport/stream/stream.h"

namespace byteps::transport {

// Loop thread, or any after the loop has stopped.
class StreamListener final : public Listener, private FdHandler {
 public:
  StreamListener(EventLoop& loop, std::shared_ptr<const StreamKind> kind, UniqueFd fd, const Address& address,
                 AcceptCallback on_accept);
  ~StreamListener() override;
  Status open();
  const Address& address() const override { return address_; }
  void tell_refused(UniqueFunction<void(const Address&, const Status&)> on_refused) override {
    on_refused_ = std::move(on_refused);
  }

 private:
  // An accepted connection during its handshake.
  class UnverifiedConnection;
  using UnverifiedConnections = std::list<std::unique_ptr<UnverifiedConnection>>;

  void on_ready(uint32_t epoll_events) override;
  void accept_one(int fd);
  bool make_room();
  UnverifiedConnections::iterator oldest_of_busiest_host();
  void pause_until(TimeUs at_us);
  void resume();
  void on_verified(UnverifiedConnections::iterator who, UniqueFd fd, const Address& peer, UniqueFd passed_fd);
  void on_dropped(UnverifiedConnections::iterator who, const Address& peer, const Status& why,
                  bool has_other_secret);
  void warn(const std::string& what);

  EpollLoop& loop_;
  const std::shared_ptr<const StreamKind> kind_;
  const UniqueFd fd_;
  const Address address_;
  AcceptCallback on_accept_;
  UniqueFunction<void(const Address&, const Status&)> on_refused_;
  UnverifiedConnections unverified_;  // oldest first
  bool watching_ = false;
  EventLoop::TimerId resume_timer_ = 0;
  TimeUs next_warning_us_ = 0;
  int warnings_held_back_ = 0;
};

}  // namespace byteps::transport
