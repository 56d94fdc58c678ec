#include "support/tcp_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/check.h"
#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

// Closes so that the other end gets a reset.
void reset(UniqueFd& fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fd.reset();
}

// False: one of the ends is closed.
bool pass_on(const UniqueFd& from, const UniqueFd& to) {
  std::array<char, 64 << 10> bytes;
  const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t written =
        send(to.get(), bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno != EAGAIN) return false;
    if (written > 0) sent += written;
    if (written < 0) std::this_thread::yield();
  }
  return true;
}

}  // namespace

TcpRelay::TcpRelay(const Address& target) : target_(target) {
  auto listener = open_listening_socket({"127.0.0.1", 0});
  BPS_CHECK(listener.is_ok()) << listener.status();
  listener_ = std::move(*listener);
  address_ = local_address(listener_.get());
  thread_ = std::thread([this] { run(); });
}

TcpRelay::~TcpRelay() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  thread_.join();
}

void TcpRelay::reset_all() {
  std::lock_guard lock(mutex_);
  for (const auto& pair : pairs_) {
    reset(pair->from);
    reset(pair->to);
  }
  pairs_.clear();
}

void TcpRelay::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  listener_.reset();
}

void TcpRelay::run() {
  while (true) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    if (!closed_) {
      UniqueFd from(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (from.valid()) {
        auto address = to_socket_address(target_);
        UniqueFd to(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
        const bool is_open = connect(to.get(), address->get(), address->length) == 0;
        if (is_open) pairs_.emplace_back(new Pair{std::move(from), std::move(to)});
      }
    }
    std::erase_if(pairs_, [](const auto& pair) {
      return !pass_on(pair->from, pair->to) || !pass_on(pair->to, pair->from);
    });
  }
}

}  // namespace byteps::transport
