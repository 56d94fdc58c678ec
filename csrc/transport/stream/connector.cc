#include "transport/stream/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

// Between attempts. Short at first: at the start of a job the other side is late by milliseconds.
constexpr TimeUs kFirstPauseUs = 5'000;
constexpr TimeUs kLongestPauseUs = 500'000;
// Who hung up during the handshake is there, and perhaps had too many callers at once.
constexpr TimeUs kHungUpPauseUs = 50'000;

// Errors that trying again does not cure; all others may be a peer or a network that is not up yet.
bool is_permanent(int error_number) {
  return error_number == EACCES || error_number == EPERM || error_number == EINVAL ||
         error_number == EAFNOSUPPORT || error_number == EPROTONOSUPPORT;
}

// The name of a Unix socket was there before anybody could hear of it: it went, or is in another namespace.
bool is_gone(const Address& address, int error_number) {
  return address.is_unix() && error_number == ECONNREFUSED;
}

}  // namespace

void Connector::start(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                      TimeUs deadline_us, ConnectCallback on_done) {
  std::shared_ptr<Connector> self(new Connector(loop, std::move(kind), address, std::move(on_done)));
  self->deadline_ = loop.run_at(deadline_us, [self] { self->on_deadline(); });
  self->attempt();
}

Connector::Connector(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                     ConnectCallback on_done)
    : loop_(EpollLoop::from(loop)),
      kind_(std::move(kind)),
      address_(address),
      started_us_(now_us()),
      on_done_(std::move(on_done)),
      pause_us_(kFirstPauseUs) {}

Connector::~Connector() {
  loop_.cancel(next_attempt_);
  drop_socket();
}

void Connector::attempt() {
  if (const Status status = begin_connect(); !status.is_ok()) fail(status);
}

Status Connector::begin_connect() {
  const auto to = to_socket_address(address_);
  if (!to) return to.status();
  auto fd = open_stream_socket(to->family());
  if (!fd) return fd.status();
  // Interrupted, it goes on in the background, too.
  if (::connect(fd->get(), to->get(), to->length) != 0 && errno != EINPROGRESS && errno != EINTR) {
    const int error = errno;
    const Status status = from_errno("connect", error);
    hopeless_ = is_gone(address_, error);
    return is_permanent(error) ? Status(StatusCode::kInvalidArgument, status.message()) : status;
  }
  BPS_RETURN_IF_ERROR(loop_.watch(fd->get(), EPOLLOUT, this));
  fd_ = std::move(*fd);
  return Status::ok();
}

void Connector::on_ready(uint32_t) {
  const auto self = shared_from_this();  // finish() gives up the last other owner
  if (!handshake_) {
    if (const Status status = on_connected(); !status.is_ok()) return fail(status);
  }
  const auto progress = handshake_->advance(fd_.get());
  if (!progress) return fail(progress.status());
  if (*progress == SocketHandshake::Progress::kNeedsBytes) return;
  loop_.unwatch(fd_.get());
  finish(kind_->make_connection(loop_, std::move(fd_), address_, Side::kConnecting, std::move(gift_)));
}

Status Connector::on_connected() {
  if (const int error = take_socket_error(fd_.get()); error != 0) {
    const Status status = from_errno("connect", error);
    return is_permanent(error) ? Status(StatusCode::kInvalidArgument, status.message()) : status;
  }
  // TCP connects a socket to itself when the kernel happens to give it the port it is calling.
  if (local_address(fd_.get()) == peer_address(fd_.get())) return from_errno("connect", ECONNREFUSED);
  BPS_RETURN_IF_ERROR(kind_->admit(fd_.get()));
  auto gift = kind_->make_gift();
  if (!gift) return gift.status();
  gift_ = std::move(*gift);
  handshake_.emplace(Side::kConnecting, kind_->options().credentials, gift_.get());
  return loop_.modify(fd_.get(), EPOLLIN);
}

void Connector::on_deadline() {
  std::ostringstream text;
  text << kind_->name() << ": connect to " << address_.to_string() << ": no connection within " << std::fixed;
  text.precision(1);
  text << static_cast<double>(now_us() - started_us_) / 1e6 << " s: ";
  if (handshake_) {
    text << "it accepts connections but does not answer: is the process there stopped, overloaded, or not "
            "byteps?";
  } else {
    text << (last_failure_.is_ok() ? "connect: no answer" : last_failure_.message())
         << ": check that the process there runs, the address, and firewalls";
  }
  finish(unavailable(text.str()));
}

void Connector::fail(const Status& why) {
  if (why.code() == StatusCode::kUnavailable && !hopeless_) return retry(why);
  finish(why.with_context(std::string(kind_->name()) + ": connect to " + address_.to_string()));
}

void Connector::retry(const Status& why) {
  last_failure_ = why;
  const bool was_there = handshake_.has_value();
  drop_socket();
  next_attempt_ = loop_.run_at(now_us() + (was_there ? kHungUpPauseUs : pause_us_), [this] { attempt(); });
  if (!was_there) pause_us_ = std::min(2 * pause_us_, kLongestPauseUs);
}

void Connector::drop_socket() {
  handshake_.reset();
  gift_.reset();
  if (!fd_.valid()) return;
  loop_.unwatch(fd_.get());
  fd_.reset();
}

void Connector::finish(Result<std::unique_ptr<Connection>> result) {
  const auto self = shared_from_this();
  ConnectCallback on_done = std::move(on_done_);
  drop_socket();
  loop_.cancel(deadline_);
  on_done(std::move(result));
}

void connect_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                    TimeUs deadline_us, ConnectCallback on_done) {
  Connector::start(loop, std::move(kind), address, deadline_us, std::move(on_done));
}

}  // namespace byteps::transport
