#include "transport/stream/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>

#include "base/log.h"
#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

constexpr int kAcceptsPerEvent = 64;
// When the limit of unverified connections is reached, a new connection replaces one that has had
// this much time for its handshake and may call again. So connections that fill the limit again and
// again delay members of the job by a few of these periods.
constexpr TimeUs kMinHandshakeUs = 50'000;
constexpr TimeUs kOutOfResourcesPauseUs = 100'000;
constexpr TimeUs kWarningPeriodUs = 10'000'000;

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

class StreamListener::UnverifiedConnection final : private FdHandler {
 public:
  UnverifiedConnection(StreamListener& listener, UniqueFd fd)
      : listener_(listener),
        fd_(std::move(fd)),
        peer_(peer_address(fd_.get())),
        accepted_us_(now_us()),
        handshake_(Side::kAccepting, listener.kind_->options().credentials) {}
  ~UnverifiedConnection() override {
    loop().cancel(deadline_);
    if (fd_.valid()) loop().unwatch(fd_.get());
  }

  Status begin(UnverifiedConnections::iterator self) {
    self_ = self;
    const TimeUs grace_us = seconds_to_us(listener_.kind_->options().handshake_timeout_s);
    deadline_ = loop().run_at(accepted_us_ + grace_us,
                              [this] { drop(deadline_exceeded("its handshake took too long")); });
    return loop().watch(fd_.get(), EPOLLIN, this);
  }
  void drop(const Status& why) {
    listener_.on_dropped(self_, peer_, why, handshake_.refused() == AuthResult::kOtherSecret);
  }
  // Continues the handshake. Returns false if it is over and this object destroyed.
  bool advance() {
    const auto progress = handshake_.advance(fd_.get());
    if (progress && *progress == SocketHandshake::Progress::kNeedsBytes) return true;
    if (progress) {
      loop().unwatch(fd_.get());
      listener_.on_verified(self_, std::move(fd_), peer_, handshake_.take_passed_fd());
    } else {
      drop(progress.status());
    }
    return false;
  }
  TimeUs accepted_us() const { return accepted_us_; }
  const std::string& host() const { return peer_.ip; }

 private:
  void on_ready(uint32_t) override { advance(); }
  EpollLoop& loop() { return listener_.loop_; }

  StreamListener& listener_;
  UniqueFd fd_;
  const Address peer_;
  const TimeUs accepted_us_;
  SocketHandshake handshake_;
  UnverifiedConnections::iterator self_;
  EventLoop::TimerId deadline_ = 0;
};

StreamListener::StreamListener(EventLoop& loop, std::shared_ptr<const StreamKind> kind, UniqueFd fd,
                               const Address& address, AcceptCallback on_accept)
    : loop_(EpollLoop::from(loop)),
      kind_(std::move(kind)),
      fd_(std::move(fd)),
      address_(address),
      on_accept_(std::move(on_accept)) {}

StreamListener::~StreamListener() {
  loop_.cancel(resume_timer_);
  if (watching_) loop_.unwatch(fd_.get());
}

Status StreamListener::open() {
  BPS_RETURN_IF_ERROR(loop_.watch(fd_.get(), EPOLLIN, this));
  watching_ = true;
  return Status::ok();
}

void StreamListener::on_ready(uint32_t) {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    if (!make_room()) return;
    const int fd = accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      accept_one(fd);
    } else if (errno == EAGAIN) {
      return;
    } else if (is_out_of_resources(errno)) {
      warn(from_errno("accept", errno).message() + ": new connections have to wait");
      return pause_until(now_us() + kOutOfResourcesPauseUs);
    }  // otherwise interrupted, or the waiting connection broke; tries the next one
  }
}

void StreamListener::accept_one(int fd) {
  UniqueFd owned(fd);
  if (const Status status = kind_->admit(fd); !status.is_ok())
    return warn("dropped a connection: " + status.message());
  unverified_.push_back(std::make_unique<UnverifiedConnection>(*this, std::move(owned)));
  const auto who = std::prev(unverified_.end());
  if (const Status status = (*who)->begin(who); !status.is_ok()) (*who)->drop(status);
}

// Returns false if the limit is reached; resume() is called when that may have changed.
bool StreamListener::make_room() {
  if (static_cast<int>(unverified_.size()) < kind_->options().max_unverified_connections) return true;
  const auto victim = oldest_of_busiest_host();
  const TimeUs may_drop_us = (*victim)->accepted_us() + kMinHandshakeUs;
  if (now_us() < may_drop_us) {
    pause_until(may_drop_us);
    return false;
  }
  // Its next message may have arrived while this loop was busy.
  if ((*victim)->advance())
    (*victim)->drop(unavailable("its handshake was slow while other connections waited"));
  return true;
}

// A host that opens many connections displaces only its own.
StreamListener::UnverifiedConnections::iterator StreamListener::oldest_of_busiest_host() {
  std::map<std::string_view, int> counts;
  for (const auto& each : unverified_) ++counts[each->host()];
  const auto busiest = std::max_element(counts.begin(), counts.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(unverified_.begin(), unverified_.end(),
                      [&](const auto& each) { return each->host() == busiest->first; });
}

void StreamListener::pause_until(TimeUs at_us) {
  if (watching_) loop_.unwatch(fd_.get());
  watching_ = false;
  loop_.cancel(resume_timer_);
  resume_timer_ = loop_.run_at(at_us, [this] { resume(); });
}

void StreamListener::resume() {
  if (watching_) return;
  if (open().is_ok()) {
    loop_.cancel(resume_timer_);
  } else {
    pause_until(now_us() + kOutOfResourcesPauseUs);
  }
}

void StreamListener::on_verified(UnverifiedConnections::iterator who, UniqueFd fd, const Address& peer,
                                 UniqueFd passed_fd) {
  const std::unique_ptr<UnverifiedConnection> caller =
      std::move(*who);  // destroyed when this function returns
  unverified_.erase(who);
  resume();
  auto connection =
      kind_->make_connection(loop_, std::move(fd), peer, Side::kAccepting, std::move(passed_fd));
  if (!connection) return warn("dropped " + peer.to_string() + ": " + connection.status().message());
  on_accept_(std::move(*connection));
}

void StreamListener::on_dropped(UnverifiedConnections::iterator who, const Address& peer, const Status& why,
                                bool has_other_secret) {
  const std::unique_ptr<UnverifiedConnection> caller = std::move(*who);
  unverified_.erase(who);
  warn("dropped " + peer.to_string() + ", which did not prove the job's secret: " + why.message());
  resume();
  if (has_other_secret && on_refused_) on_refused_(peer, why);
}

// Logs one line per period, so that a port scanner does not fill the disk.
void StreamListener::warn(const std::string& what) {
  const TimeUs now = now_us();
  if (now < next_warning_us_) {
    ++warnings_held_back_;
    return;
  }
  next_warning_us_ = now + kWarningPeriodUs;
  const int held_back = std::exchange(warnings_held_back_, 0);
  BPS_LOG(kWarning) << kind_->name() << ": listening on " << address_.to_string() << ": " << what
                    << (held_back
                            ? " (and " + std::to_string(held_back) + " similar warnings were suppressed)"
                            : "");
}

Result<std::unique_ptr<Listener>> listen_on_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind,
                                                   UniqueFd fd, const Address& address,
                                                   AcceptCallback on_accept) {
  const std::string name = kind->name();
  auto listener =
      std::make_unique<StreamListener>(loop, std::move(kind), std::move(fd), address, std::move(on_accept));
  Status status = failed_precondition(name + ": listen: the event loop has stopped");
  if (loop.in_loop()) {
    status = listener->open();
  } else {
    loop.run_and_wait([&] { status = listener->open(); });
  }
  if (!status.is_ok()) return status;
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace byteps::transport
