#include "transport/resume/resuming_transport.h"

#include <atomic>
#include <utility>

#include "transport/resume/resuming_connection.h"

namespace byteps::transport {
namespace {

class ResumingTransport final : public Transport {
 public:
  ResumingTransport(std::unique_ptr<Transport> carrier, const ResumeOptions& options)
      : carrier_(std::move(carrier)), options_(options) {}

  const char* name() const override { return carrier_->name(); }
  Status viable() const override { return carrier_->viable(); }

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           AcceptCallback on_accept) override {
    return carrier_->listen(loop, address, resuming(std::move(on_accept)));
  }

  Result<std::unique_ptr<Listener>> listen_on(EventLoop& loop, UniqueFd socket,
                                              AcceptCallback on_accept) override {
    return carrier_->listen_on(loop, std::move(socket), resuming(std::move(on_accept)));
  }

  void connect(EventLoop& loop, const Address& address, ConnectLimits limits,
               ConnectCallback on_done) override {
    const auto connector = [this, &loop, address](ConnectLimits again, ConnectCallback on_connected) {
      carrier_->connect(loop, address, again, std::move(on_connected));
    };
    carrier_->connect(
        loop, address, limits,
        [this, connector, on_done = std::move(on_done)](Result<std::unique_ptr<Connection>> carrier) mutable {
          if (!carrier) return on_done(std::move(carrier));
          const SessionId session{options_.nonce, ++last_session_};
          on_done(Result<std::unique_ptr<Connection>>(std::make_unique<ResumingConnection>(
              std::move(*carrier), session, connector, options_.limit_us)));
        });
  }

 private:
  // Returns what a listener of the carrier calls; the connections that it gets share their sessions.
  AcceptCallback resuming(AcceptCallback on_accept) const {
    return [table = std::make_shared<SessionTable>(), limit_us = options_.limit_us,
            on_accept = std::move(on_accept)](std::unique_ptr<Connection> carrier) mutable {
      on_accept(std::make_unique<ResumingConnection>(std::move(carrier), table, limit_us));
    };
  }

  const std::unique_ptr<Transport> carrier_;
  const ResumeOptions options_;
  std::atomic<uint64_t> last_session_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_resuming_transport(std::unique_ptr<Transport> carrier,
                                                   const ResumeOptions& options) {
  return std::make_unique<ResumingTransport>(std::move(carrier), options);
}

}  // namespace byteps::transport
