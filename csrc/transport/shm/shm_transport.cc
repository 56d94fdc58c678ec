#include "transport/shm/shm_transport.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include "base/check.h"
#include "transport/shm/connection.h"
#include "transport/shm/segment.h"
#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

// Accepts the same user and root.
bool is_trusted(uid_t uid) { return uid == geteuid() || uid == 0; }

Result<ucred> credentials_of_peer(int socket_fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return from_errno("SO_PEERCRED", errno);
  }
  return credentials;
}

class ShmKind final : public StreamKind {
 public:
  explicit ShmKind(ShmOptions options) : options_(std::move(options)) {
    options_.arena_bytes = std::clamp(options_.arena_bytes, kLeaseUnitBytes, kMaxSegmentBytes);
  }
  const char* name() const override { return "shm"; }
  const StreamOptions& options() const override { return options_.stream; }
  // Abstract names have no permissions: any process here can connect to one, or bind it first.
  Status admit(int socket_fd) const override {
    const auto peer = credentials_of_peer(socket_fd);
    if (!peer) return peer.status();
    if (is_trusted(peer->uid)) return Status::ok();
    return permission_denied("process " + std::to_string(peer->pid) + " of user " +
                             std::to_string(peer->uid) + ": expected user " + std::to_string(geteuid()));
  }
  Result<UniqueFd> make_passed_fd() const override {
    if (!options_.pool) return create_segment(options_.arena_bytes);
    UniqueFd fd(::fcntl(options_.pool->fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) return from_errno("shared memory: dup", errno);
    return fd;
  }
  Result<std::unique_ptr<Connection>> make_connection(EventLoop& loop, UniqueFd socket, const Address&,
                                                      Side side, UniqueFd passed_fd) const override {
    const auto peer = credentials_of_peer(socket.get());
    if (!peer) return peer.status();
    const std::string name = "shm pid " + std::to_string(peer->pid);
    const size_t max_payload_bytes = options_.stream.max_payload_bytes;
    if (options_.pool && side == Side::kConnecting) {
      const MutableBytes arena = options_.pool->take_arena(options_.arena_bytes);
      return std::unique_ptr<Connection>(std::make_unique<ShmConnection>(
          loop, std::move(socket), name, options_.pool, arena, max_payload_bytes));
    }
    auto segment = Segment::map(passed_fd.get());
    if (!segment) return segment.status();
    return std::unique_ptr<Connection>(std::make_unique<ShmConnection>(
        loop, std::move(socket), name, side, std::move(*segment), max_payload_bytes));
  }

 private:
  ShmOptions options_;
};

// "@byteps-<job>-<16 random hex digits>".
Address random_name(const std::string& job_id) {
  constexpr size_t kMaxJobLetters = 40;
  std::string job = job_id.substr(0, kMaxJobLetters);
  std::replace_if(job.begin(), job.end(), [](unsigned char c) { return !std::isalnum(c); }, '-');
  uint64_t number = 0;
  while (getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) {
    // Happens only while the machine boots.
    BPS_CHECK(errno == EINTR) << "getrandom: errno " << errno;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016lx", static_cast<unsigned long>(number));
  return {"@byteps-" + job + "-" + digits, 0};
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(ShmOptions options) : kind_(std::make_shared<const ShmKind>(std::move(options))) {}

  const char* name() const override { return kind_->name(); }
  Status viable() const override {
    const auto fd = kind_->make_passed_fd();
    return fd ? Segment::map(fd->get()).status() : fd.status();
  }
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           AcceptCallback on_accept) override {
    BPS_RETURN_IF_ERROR(check_kind(address));
    const Address name = address.ip == "@" ? random_name(kind_->options().credentials.job_id) : address;
    auto fd = open_listening_socket(name);
    if (!fd) return fd.status().with_context("shm");
    return listen_on_stream(loop, kind_, std::move(*fd), name, std::move(on_accept));
  }
  void connect(EventLoop& loop, const Address& address, ConnectLimits limits,
               ConnectCallback on_done) override {
    loop.post([&loop, kind = kind_, address, limits, on_done = std::move(on_done),
               allowed = check_kind(address)]() mutable {
      if (!allowed.is_ok()) return on_done(allowed);
      connect_stream(loop, std::move(kind), address, limits, std::move(on_done));
    });
  }

 private:
  static Status check_kind(const Address& address) {
    if (address.is_unix()) return Status::ok();
    return invalid_argument("shm: expected the name of a Unix socket (@name), got " + address.to_string());
  }
  const std::shared_ptr<const ShmKind> kind_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(ShmOptions options) {
  return std::make_unique<ShmTransport>(std::move(options));
}

}  // namespace byteps::transport
