#include "transport/stream/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

// Pause between attempts. Short at first, as processes of a job start within milliseconds of each
// other.
constexpr TimeUs kFirstPauseUs = 5'000;
constexpr TimeUs kLongestPauseUs = 500'000;
// Pause after the peer hung up during the handshake: it exists, but may have too many callers.
constexpr TimeUs kHungUpPauseUs = 50'000;
// An attempt without an answer for so long begins anew: the kernel's own tries become ever rarer, so
// that it would find a network that was away for a while long after that is back.
constexpr TimeUs kNoAnswerUs = 2'000'000;

// Errors that a retry does not cure. Any other may mean that the peer or the network is not up yet.
bool is_permanent(int error_number) {
  return error_number == EACCES || error_number == EPERM || error_number == EINVAL ||
         error_number == EAFNOSUPPORT || error_number == EPROTONOSUPPORT;
}

// Names of Unix sockets are announced after they are bound, so a missing name means that the
// listener is gone or in another namespace.
bool is_gone(const Address& address, int error_number) {
  return address.is_unix() && error_number == ECONNREFUSED;
}

}  // namespace

void Connector::start(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                      ConnectLimits limits, ConnectCallback on_done) {
  std::shared_ptr<Connector> self(
      new Connector(loop, std::move(kind), address, limits.refusals_us, std::move(on_done)));
  self->deadline_ = loop.run_at(limits.deadline_us, [self] { self->give_up(); });
  self->attempt();
}

Connector::Connector(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                     TimeUs refusals_us, ConnectCallback on_done)
    : loop_(EpollLoop::from(loop)),
      kind_(std::move(kind)),
      address_(address),
      started_us_(now_us()),
      refusals_us_(refusals_us),
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
  // An interrupted connect() goes on in the background, too.
  if (::connect(fd->get(), to->get(), to->length) != 0 && errno != EINPROGRESS && errno != EINTR) {
    const int error = errno;
    hopeless_ = is_gone(address_, error);
    return from_connect(error);
  }
  BPS_RETURN_IF_ERROR(loop_.watch(fd->get(), EPOLLOUT, this));
  fd_ = std::move(*fd);
  no_answer_ = loop_.run_at(now_us() + kNoAnswerUs, [this] {
    refused_since_us_ = kNever;
    fail(unavailable("connect: no answer"));
  });
  return Status::ok();
}

void Connector::on_ready(uint32_t) {
  const auto self = shared_from_this();  // finish() drops the last other reference
  if (!handshake_) {
    if (const Status status = on_connected(); !status.is_ok()) return fail(status);
  }
  const auto progress = handshake_->advance(fd_.get());
  if (!progress) return fail(progress.status());
  if (*progress == SocketHandshake::Progress::kNeedsBytes) return;
  loop_.unwatch(fd_.get());
  finish(kind_->make_connection(loop_, std::move(fd_), address_, Side::kConnecting, std::move(passed_fd_)));
}

Status Connector::from_connect(int error) {
  if (error != ECONNREFUSED)
    refused_since_us_ = kNever;
  else if (refused_since_us_ == kNever)
    refused_since_us_ = now_us();
  const Status status = error == 0 ? Status::ok() : from_errno("connect", error);
  return is_permanent(error) ? Status(StatusCode::kInvalidArgument, status.message()) : status;
}

Status Connector::on_connected() {
  loop_.cancel(std::exchange(no_answer_, 0));
  BPS_RETURN_IF_ERROR(from_connect(take_socket_error(fd_.get())));
  // TCP connects a socket to itself if the kernel happens to assign the port that it calls.
  if (local_address(fd_.get()) == peer_address(fd_.get())) return from_connect(ECONNREFUSED);
  BPS_RETURN_IF_ERROR(kind_->admit(fd_.get()));
  auto passed_fd = kind_->make_passed_fd();
  if (!passed_fd) return passed_fd.status();
  passed_fd_ = std::move(*passed_fd);
  handshake_.emplace(Side::kConnecting, kind_->options().credentials, passed_fd_.get());
  return loop_.modify(fd_.get(), EPOLLIN);
}

void Connector::give_up() {
  std::ostringstream text;
  text << kind_->name() << ": connect to " << address_.to_string() << ": no connection within " << std::fixed;
  text.precision(1);
  text << static_cast<double>(now_us() - started_us_) / 1e6 << " s: ";
  if (handshake_) {
    text << "the peer accepts connections but does not answer: check that its process is byteps, and "
            "neither stopped nor overloaded";
  } else {
    text << (last_failure_.is_ok() ? "connect: no answer" : last_failure_.message())
         << ": check the address, firewalls, and that the peer's process runs";
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
  if (refused_since_us_ != kNever && now_us() >= later(refused_since_us_, refusals_us_)) return give_up();
  next_attempt_ = loop_.run_at(now_us() + (was_there ? kHungUpPauseUs : pause_us_), [this] { attempt(); });
  if (!was_there) pause_us_ = std::min(2 * pause_us_, kLongestPauseUs);
}

void Connector::drop_socket() {
  handshake_.reset();
  passed_fd_.reset();
  loop_.cancel(std::exchange(no_answer_, 0));
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
                    ConnectLimits limits, ConnectCallback on_done) {
  Connector::start(loop, std::move(kind), address, limits, std::move(on_done));
}

}  // namespace byteps::transport
