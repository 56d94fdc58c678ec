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
// When all places are taken, a connection that has had so long for its handshake loses its own to the next one, and may
// call again: strangers that fill all places again and again delay ours by a few of these.
constexpr TimeUs kTurnUs = 50'000;
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
        came_us_(now_us()),
        handshake_(Side::kAccepting, listener.kind_->options().credentials) {}
  ~UnverifiedConnection() override {
    loop().cancel(deadline_);
    if (fd_.valid()) loop().unwatch(fd_.get());
  }

  Status begin(Strangers::iterator self) {
    self_ = self;
    const TimeUs grace_us = seconds_to_us(listener_.kind_->options().handshake_timeout_s);
    deadline_ =
        loop().run_at(came_us_ + grace_us, [this] { drop(deadline_exceeded("silent for too long")); });
    return loop().watch(fd_.get(), EPOLLIN, this);
  }
  void drop(const Status& why) {
    listener_.on_dropped(self_, peer_, why, handshake_.refused() == AuthResult::kOtherSecret);
  }
  // Goes on with the handshake; false: it is over, and this object gone.
  bool go_on() {
    const auto progress = handshake_.advance(fd_.get());
    if (progress && *progress == SocketHandshake::Progress::kNeedsBytes) return true;
    if (progress) {
      loop().unwatch(fd_.get());
      listener_.on_proved(self_, std::move(fd_), peer_, handshake_.take_gift());
    } else {
      drop(progress.status());
    }
    return false;
  }
  TimeUs came_us() const { return came_us_; }
  const std::string& host() const { return peer_.ip; }

 private:
  void on_ready(uint32_t) override { go_on(); }
  EpollLoop& loop() { return listener_.loop_; }

  StreamListener& listener_;
  UniqueFd fd_;
  const Address peer_;
  const TimeUs came_us_;
  SocketHandshake handshake_;
  Strangers::iterator self_;
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
      warn(from_errno("accept", errno).message() + ": connections have to wait");
      return pause_until(now_us() + kOutOfResourcesPauseUs);
    }  // else: interrupted, or that connection broke while it waited; the next one may be sound
  }
}

void StreamListener::accept_one(int fd) {
  UniqueFd owned(fd);
  if (const Status status = kind_->admit(fd); !status.is_ok())
    return warn("dropped a caller: " + status.message());
  strangers_.push_back(std::make_unique<UnverifiedConnection>(*this, std::move(owned)));
  const auto who = std::prev(strangers_.end());
  if (const Status status = (*who)->begin(who); !status.is_ok()) (*who)->drop(status);
}

// False: no place is free, and resume() will be called when one may be.
bool StreamListener::make_room() {
  if (static_cast<int>(strangers_.size()) < kind_->options().max_unproved_connections) return true;
  const auto victim = oldest_of_busiest_host();
  const TimeUs turn_ends_us = (*victim)->came_us() + kTurnUs;
  if (now_us() < turn_ends_us) {
    pause_until(turn_ends_us);
    return false;
  }
  // Its words may have come while this loop was busy.
  if ((*victim)->go_on()) (*victim)->drop(unavailable("slow while others wait"));
  return true;
}

// One host that fills all places then fills its own only.
StreamListener::Strangers::iterator StreamListener::oldest_of_busiest_host() {
  std::map<std::string_view, int> counts;
  for (const auto& each : strangers_) ++counts[each->host()];
  const auto busiest = std::max_element(counts.begin(), counts.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(strangers_.begin(), strangers_.end(),
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

void StreamListener::on_proved(Strangers::iterator who, UniqueFd fd, const Address& peer, UniqueFd gift) {
  const std::unique_ptr<UnverifiedConnection> caller =
      std::move(*who);  // goes when this function has returned
  strangers_.erase(who);
  resume();
  auto connection = kind_->make_connection(loop_, std::move(fd), peer, Side::kAccepting, std::move(gift));
  if (!connection) return warn("dropped " + peer.to_string() + ": " + connection.status().message());
  on_accept_(std::move(*connection));
}

void StreamListener::on_dropped(Strangers::iterator who, const Address& peer, const Status& why,
                                bool has_other_secret) {
  const std::unique_ptr<UnverifiedConnection> caller = std::move(*who);
  strangers_.erase(who);
  warn("dropped " + peer.to_string() + ", which did not prove the job's secret: " + why.message());
  resume();
  if (has_other_secret && on_refused_) on_refused_(peer, why);
}

// One line per period: who scans ports shall not fill the disk.
void StreamListener::warn(const std::string& what) {
  const TimeUs now = now_us();
  if (now < next_warning_us_) {
    ++warnings_held_back_;
    return;
  }
  next_warning_us_ = now + kWarningPeriodUs;
  const int held_back = std::exchange(warnings_held_back_, 0);
  BPS_LOG(kWarning) << kind_->name() << ": listening on " << address_.to_string() << ": " << what
                    << (held_back ? " (and " + std::to_string(held_back) + " like it before)" : "");
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
