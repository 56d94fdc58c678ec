#include "transport/stream/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/scoped_flag.h"
#include "transport/stream/socket.h"
#include "transport/stream/tcp_statistics.h"

namespace byteps::transport {
namespace {

// Limit per readiness event and per turn, so that other connections get their share.
constexpr size_t kReadBudgetBytes = 1 << 20;
constexpr size_t kWriteBudgetBytes = 1 << 20;
constexpr size_t kRangesPerWrite = 512;  // two per frame

// Payloads arrive in packets. For fewer missing bytes than kMinQuietBytes a system call that saves
// wake-ups does not pay; more than kMaxQuietBytes at once would not fit into the cache.
constexpr size_t kMinQuietBytes = 16 << 10;
constexpr size_t kMaxQuietBytes = 128 << 10;
// Linux makes the receive window as large as what is read in a round trip, without what is left
// unread. So on a long path, bytes that wait would keep the window as small as they are: with 100 ms
// there and back, 16 MiB took 9.9 s over a new connection, and 1.9 s if all was read at once.
constexpr TimeUs kShortPathUs = 1000;
constexpr size_t kLargeBufferBytes = 8 * kMaxQuietBytes;

// Errors after which another connection may come about at once.
bool is_reset(int error_number) {
  switch (error_number) {
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN: return true;
    default: return false;
  }
}

}  // namespace

Status StreamConnection::broken(const char* what, int error_number) {
  was_reset_ = was_reset_ || is_reset(error_number);
  const Status status = from_errno(peer_ + ": " + what, error_number);
  if (error_number != ETIMEDOUT) return status;
  return Status(status.code(),
                status.message() +
                    ": the peer's machine gives no sign of life, or its process does not read: "
                    "check that both run and that the network between works");
}

StreamConnection::StreamConnection(EventLoop& loop, UniqueFd fd, std::string peer, const FrameLimits& limits)
    : loop_(EpollLoop::from(loop)), fd_(std::move(fd)), peer_(std::move(peer)), reader_(*this, limits) {}

StreamConnection::~StreamConnection() {
  BPS_CHECK(!in_callback_) << "a connection is destroyed inside a callback of its own";
  close();
}

void StreamConnection::start(Receiver* receiver) {
  BPS_CHECK(!receiver_) << "start() was called twice";
  receiver_ = receiver;
  if (open() || unreported_) request_turn();
}

void StreamConnection::send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) {
  if (error_.is_ok() && !closing_) {
    queue_.push(head, payload.data, std::move(on_sent));
    if (!blocked_) request_turn();  // frames of one pass are written together
  } else if (on_sent) {
    Status why = error_.is_ok() ? aborted(peer_ + ": closing") : error_;
    loop_.post([on_sent = std::move(on_sent), why = std::move(why)]() mutable { on_sent(why); });
  }
}

void StreamConnection::pace(uint64_t bytes_per_s) {
  if (open()) rate_limit_.set(fd_.get(), bytes_per_s);
}

std::optional<SentTraffic> StreamConnection::sent_traffic() {
  const auto statistics = open() ? tcp_statistics(fd_.get()) : std::nullopt;
  if (!statistics) return std::nullopt;
  return SentTraffic{.bytes = statistics->acknowledged_bytes,
                     .busy_us = statistics->busy_us,
                     .resent_bytes = statistics->resent_bytes,
                     .min_rtt_us = statistics->min_rtt_us == kNever ? 0 : statistics->min_rtt_us};
}

void StreamConnection::limit_silence(TimeUs limit_us) {
  if (open()) limit_tcp_silence(fd_.get(), limit_us);
}

void StreamConnection::close_when_sent(GracePeriod grace_period) {
  if (!open() || closing_) return;
  closing_ = true;
  closing_wait_.emplace(grace_period, now_us());
  request_turn();
  deadline_ = loop_.run_at(now_us(), [this] { continue_closing(); });
}

void StreamConnection::continue_closing() {
  // Bytes in the kernel's buffer, not yet received by the peer.
  const uint64_t kept_bytes = untaken_bytes(fd_.get());
  const bool outstanding = !queue_.empty() || kept_bytes > 0;
  const auto next_us = closing_wait_->look(written_bytes_ - kept_bytes, outstanding, now_us());
  if (!next_us) return end(Status::ok());
  deadline_ = loop_.run_at(*next_us, [this] { continue_closing(); });
}

void StreamConnection::close() {
  shut(aborted(peer_ + ": closed by this end"));
  unreported_.reset();
  loop_.cancel_turn(this);
}

void StreamConnection::on_ready(uint32_t epoll_events) {
  const ScopedFlag in_callback(in_callback_);
  const bool broken = epoll_events & (EPOLLERR | EPOLLHUP);
  if (blocked_ && (broken || epoll_events & EPOLLOUT)) {
    blocked_ = false;
    request_turn();
  }
  if (receiver_ && (broken || epoll_events & EPOLLIN)) {
    read_frames();
    if (open()) sleep_until_worthwhile();
  }
}

void StreamConnection::on_turn() {
  turn_requested_ = false;
  if (unreported_) return report(*std::exchange(unreported_, std::nullopt));
  const ScopedFlag in_callback(in_callback_);
  if (!blocked_) write_frames();
  if (open() && closing_ && queue_.empty()) shutdown(fd_.get(), SHUT_WR);
  if (open()) {
    if (const Status status = update_interest(); !status.is_ok()) end(status.with_context(peer_));
  }
}

void StreamConnection::read_frames() {
  size_t budget_bytes = kReadBudgetBytes;
  while (open()) {
    FrameReader::Space space = reader_.space(budget_bytes);
    const ssize_t got = readv(fd_.get(), space.parts.data(), space.count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) return end(broken("receive", errno));
    if (got == 0) return on_end_of_stream();
    const auto bytes = static_cast<size_t>(got);
    if (const Status status = reader_.advance(bytes, *receiver_); !status.is_ok() && open())
      return end(status);
    // All bytes were read, or no more are available now.
    if (bytes < space.bytes || bytes >= budget_bytes) return;
    budget_bytes -= bytes;
  }
}

// Avoids a wake-up for every packet of a large payload.
void StreamConnection::sleep_until_worthwhile() {
  const size_t missing_bytes = reader_.missing_bytes();
  const bool is_quiet = missing_bytes >= kMinQuietBytes && may_leave_unread();
  const int wanted = is_quiet ? static_cast<int>(std::min(missing_bytes, kMaxQuietBytes)) : 1;
  if (wanted != wake_bytes_) wake_at(fd_.get(), wake_bytes_ = wanted);
}

// Whether that leaves the receive window large enough.
bool StreamConnection::may_leave_unread() {
  if (may_leave_unread_) return true;
  const auto tcp = tcp_statistics(fd_.get());
  may_leave_unread_ =
      !tcp || tcp->min_rtt_us < kShortPathUs || receive_buffer_bytes(fd_.get()) >= kLargeBufferBytes;
  return may_leave_unread_;
}

void StreamConnection::on_end_of_stream() {
  if (!error_.is_ok()) return end(error_);
  if (closing_ && queue_.empty()) return end(Status::ok());
  end(unavailable(peer_ + ": closed by the other end" + (reader_.in_frame() ? " inside a frame" : "")));
}

void StreamConnection::write_frames() {
  size_t budget_bytes = kWriteBudgetBytes;
  while (!queue_.empty()) {
    if (budget_bytes == 0) return request_turn();
    std::array<iovec, kRangesPerWrite> ranges;
    const SendQueue::Gathered gathered = queue_.gather(ranges, budget_bytes);
    msghdr message{};
    message.msg_iov = ranges.data();
    message.msg_iovlen = static_cast<size_t>(gathered.count);
    const ssize_t written = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN) return on_write_error(errno);
    const size_t bytes = written < 0 ? 0 : static_cast<size_t>(written);
    blocked_ = bytes < gathered.bytes;
    written_bytes_ += bytes;
    rate_limit_.on_written(fd_.get(), bytes);
    queue_.advance(bytes);
    if (blocked_) return;
    budget_bytes -= bytes;
  }
}

// The peer's last frames may say why it closed, so they are read first; read_frames() then reports
// the end.
void StreamConnection::on_write_error(int error_number) {
  error_ = broken("send", error_number);
  shutdown(fd_.get(), SHUT_RDWR);
  queue_.fail(error_);
}

Status StreamConnection::update_interest() {
  const uint32_t wanted = (receiver_ ? uint32_t{EPOLLIN} : 0) | (blocked_ ? uint32_t{EPOLLOUT} : 0);
  if (wanted == interest_) return Status::ok();
  const uint32_t before = std::exchange(interest_, wanted);
  if (before == 0) return loop_.watch(fd_.get(), wanted, this);
  if (wanted != 0) return loop_.modify(fd_.get(), wanted);
  loop_.unwatch(fd_.get());
  return Status::ok();
}

void StreamConnection::request_turn() {
  if (std::exchange(turn_requested_, true)) return;
  loop_.request_turn(this);
}

void StreamConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted(peer_ + ": closed before this was sent") : why);
  if (receiver_) return report(why);
  unreported_ = why;
}

void StreamConnection::report(const Status& why) {
  const ScopedFlag in_callback(in_callback_);
  receiver_->on_closed(*this, why);
}

void StreamConnection::shut(const Status& why) {
  if (!open()) return;
  if (interest_ != 0) loop_.unwatch(fd_.get());
  loop_.cancel_turn(this);
  turn_requested_ = false;
  loop_.cancel(deadline_);
  reader_.stop();
  fd_.reset();
  error_ = why;
  queue_.fail(why);
}

}  // namespace byteps::transport
