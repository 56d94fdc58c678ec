#include "transport/tcp/tcp_transport.h"

#include "transport/stream/connection.h"
#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

class TcpKind final : public StreamKind {
 public:
  explicit TcpKind(TcpOptions options) : options_(std::move(options)) {}
  const char* name() const override { return "tcp"; }
  const StreamOptions& options() const override { return options_; }
  Status admit(int) const override { return Status::ok(); }
  Result<UniqueFd> make_passed_fd() const override { return UniqueFd(); }
  Result<std::unique_ptr<Connection>> make_connection(EventLoop& loop, UniqueFd socket, const Address& peer,
                                                      Side, UniqueFd) const override {
    tune_tcp(socket.get());
    return std::unique_ptr<Connection>(std::make_unique<StreamConnection>(
        loop, std::move(socket), "tcp " + peer.to_string(),
        FrameLimits{.max_payload_bytes = options_.max_payload_bytes, .max_head_bytes = kMaxStreamHeadBytes}));
  }

 private:
  const TcpOptions options_;
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpOptions options) : kind_(std::make_shared<const TcpKind>(std::move(options))) {}

  const char* name() const override { return kind_->name(); }
  Status viable() const override { return Status::ok(); }
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           AcceptCallback on_accept) override;
  Result<std::unique_ptr<Listener>> listen_on(EventLoop& loop, UniqueFd socket,
                                              AcceptCallback on_accept) override;
  void connect(EventLoop& loop, const Address& address, ConnectLimits limits,
               ConnectCallback on_done) override;

 private:
  Status check_allowed(const Address& address) const;

  const std::shared_ptr<const TcpKind> kind_;
};

// Without a secret, anyone who can reach the address could join the job; on this machine that is
// every user.
Status TcpTransport::check_allowed(const Address& address) const {
  if (address.is_unix()) return invalid_argument("tcp: " + address.to_string() + " is no IP address");
  const Credentials& credentials = kind_->options().credentials;
  if (credentials.secret.empty()) return permission_denied("tcp: " + address.to_string() + ": no secret");
  if (!credentials.loopback_only || address.is_loopback()) return Status::ok();
  return permission_denied("tcp: " + address.to_string() +
                           " is not a loopback address, and the job has no secret: set "
                           "BYTEPS_SECRET_FILE to the same file on every machine, or start with bpslaunch");
}

Result<std::unique_ptr<Listener>> TcpTransport::listen(EventLoop& loop, const Address& address,
                                                       AcceptCallback on_accept) {
  BPS_RETURN_IF_ERROR(check_allowed(address));
  auto fd = open_listening_socket(address);
  if (!fd) return fd.status().with_context(name());
  const Address bound = local_address(fd->get());
  return listen_on_stream(loop, kind_, std::move(*fd), bound, std::move(on_accept));
}

Result<std::unique_ptr<Listener>> TcpTransport::listen_on(EventLoop& loop, UniqueFd socket,
                                                          AcceptCallback on_accept) {
  const auto address = adopt_listening_socket(socket.get());
  if (!address) return address.status();
  BPS_RETURN_IF_ERROR(check_allowed(*address));
  return listen_on_stream(loop, kind_, std::move(socket), *address, std::move(on_accept));
}

void TcpTransport::connect(EventLoop& loop, const Address& address, ConnectLimits limits,
                           ConnectCallback on_done) {
  loop.post([&loop, kind = kind_, address, limits, on_done = std::move(on_done),
             allowed = check_allowed(address)]() mutable {
    if (allowed.is_ok()) {
      connect_stream(loop, std::move(kind), address, limits, std::move(on_done));
    } else {
      on_done(allowed);
    }
  });
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options) {
  return std::make_unique<TcpTransport>(std::move(options));
}

}  // namespace byteps::transport
