#include <utility>

#include "sim/sim_connection.h"

namespace byteps::sim {

using transport::Address;
using transport::ConnectCallback;
using transport::EventLoop;

class SimListener final : public transport::Listener {
 public:
  SimListener(SimNetwork& network, EventLoop& loop, transport::Credentials credentials,
              transport::AcceptCallback on_accept)
      : network_(network),
        loop_(loop),
        credentials_(std::move(credentials)),
        on_accept_(std::move(on_accept)) {}
  ~SimListener() override {
    const std::lock_guard lock(network_.time().mutex());
    if (address_) network_.unbind(*address_);
  }

  Status bind(const Address& address) {
    const Result<Address> bound = network_.bind(address, *this);
    if (bound) address_ = *bound;
    return bound.status();
  }
  const Address& address() const override { return *address_; }
  void tell_refused(UniqueFunction<void(const Address&, const Status&)> on_refused) override {
    on_refused_ = std::move(on_refused);
  }

  // ok: accepts the caller.
  Status judge(const transport::Credentials& caller) const {
    if (caller.job_id != credentials_.job_id) return permission_denied("another job");
    if (caller.secret != credentials_.secret) return permission_denied("another secret");
    return Status::ok();
  }
  void accept(std::unique_ptr<transport::Connection> connection) {
    loop_.post([this, alive = std::weak_ptr(alive_), connection = std::move(connection)]() mutable {
      if (!alive.expired()) on_accept_(std::move(connection));
    });
  }
  void refuse(const Address& caller, const Status& why) {
    loop_.post([this, alive = std::weak_ptr(alive_), caller, why] {
      if (!alive.expired() && on_refused_) on_refused_(caller, why);
    });
  }
  EventLoop& loop() { return loop_; }

 private:
  SimNetwork& network_;
  EventLoop& loop_;
  const transport::Credentials credentials_;
  transport::AcceptCallback on_accept_;
  UniqueFunction<void(const Address&, const Status&)> on_refused_;
  std::optional<Address> address_;  // set once bound
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

namespace {

constexpr TimeUs kRetryUs = 20'000;

// A connect() without an answer yet. Owned by its tasks and timers on the network's loop.
struct Attempt {
  EventLoop& loop;
  const Address from;
  const Address to;
  const transport::Credentials credentials;
  const size_t arena_bytes;
  const bool is_resumed;
  const transport::ConnectLimits limits;
  TimeUs refused_since_us;
  ConnectCallback on_done;
  std::weak_ptr<const int> transport;  // expired: the process is gone, and its loops with it
};

void answer(Attempt& attempt, Result<std::unique_ptr<transport::Connection>> result) {
  attempt.loop.post([on_done = std::move(attempt.on_done), result = std::move(result)]() mutable {
    on_done(std::move(result));
  });
}

void join(SimNetwork& network, Attempt& attempt, SimListener& listener) {
  const auto wire = std::make_shared<Wire>(network, std::array{attempt.from.ip, attempt.to.ip},
                                           attempt.arena_bytes, attempt.is_resumed);
  network.add(wire);
  listener.accept(std::make_unique<SimConnection>(listener.loop(), wire, 1, attempt.from.to_string()));
  std::unique_ptr<transport::Connection> connection =
      std::make_unique<SimConnection>(attempt.loop, wire, 0, attempt.to.to_string());
  answer(attempt, std::move(connection));
}

// Runs on the network's loop. `has_waited`: the handshake has taken its time.
void try_once(SimNetwork& network, const std::shared_ptr<Attempt>& attempt, bool has_waited) {
  if (attempt->transport.expired()) return;
  const bool is_cut = network.cut_since_us(attempt->from.ip, attempt->to.ip) != kNever ||
                      network.cut_since_us(attempt->to.ip, attempt->from.ip) != kNever;
  SimListener* const listener = is_cut ? nullptr : network.listener_at(attempt->to);
  const TimeUs now = network.time().now_us();
  if (is_cut || listener != nullptr)
    attempt->refused_since_us = kNever;
  else if (attempt->refused_since_us == kNever)
    attempt->refused_since_us = now;
  const TimeUs handshake_us = listener == nullptr || has_waited ? 0 : network.handshake_us();
  if (listener != nullptr && handshake_us == 0) {
    const Status verdict = listener->judge(attempt->credentials);
    if (verdict.is_ok()) return join(network, *attempt, *listener);
    listener->refuse(attempt->from, verdict);
    return answer(*attempt, verdict.with_context(attempt->to.to_string()));
  }
  const TimeUs refused_until_us = later(attempt->refused_since_us, attempt->limits.refusals_us);
  if (now >= std::min(attempt->limits.deadline_us, refused_until_us)) {
    return answer(*attempt, unavailable("connect to " + attempt->to.to_string() + ": no answer in time"));
  }
  const TimeUs next_us = now + (handshake_us > 0 ? handshake_us : kRetryUs);
  network.loop().schedule(
      std::min(next_us, attempt->limits.deadline_us),
      [&network, attempt, is_over = handshake_us > 0 && next_us <= attempt->limits.deadline_us] {
        try_once(network, attempt, is_over);
      });
}

class SimTransport final : public transport::Transport {
 public:
  SimTransport(SimNetwork& network, SimTransportOptions options)
      : network_(network), options_(std::move(options)) {}

  const char* name() const override { return "sim"; }
  Status viable() const override { return Status::ok(); }
  Result<std::unique_ptr<transport::Listener>> listen(EventLoop& loop, const Address& address,
                                                      transport::AcceptCallback on_accept) override {
    const std::lock_guard lock(network_.time().mutex());
    auto listener = std::make_unique<SimListener>(network_, loop, options_.credentials, std::move(on_accept));
    BPS_RETURN_IF_ERROR(listener->bind(address));
    return Result<std::unique_ptr<transport::Listener>>(std::move(listener));
  }
  void connect(EventLoop& loop, const Address& address, transport::ConnectLimits limits,
               ConnectCallback on_done) override {
    const std::shared_ptr<Attempt> attempt(new Attempt{.loop = loop,
                                                       .from = {options_.ip, 0},
                                                       .to = address,
                                                       .credentials = options_.credentials,
                                                       .arena_bytes = options_.arena_bytes,
                                                       .is_resumed = options_.is_resumed,
                                                       .limits = limits,
                                                       .refused_since_us = kNever,
                                                       .on_done = std::move(on_done),
                                                       .transport = alive_});
    const std::lock_guard lock(network_.time().mutex());
    const TimeUs at_us = network_.arrival_us(attempt->from.ip, attempt->to.ip, 100);
    network_.loop().schedule(at_us, [&network = network_, attempt] { try_once(network, attempt, false); });
  }

 private:
  SimNetwork& network_;
  const SimTransportOptions options_;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace

std::unique_ptr<transport::Transport> make_sim_transport(SimNetwork& network, SimTransportOptions options) {
  return std::make_unique<SimTransport>(network, std::move(options));
}

}  // namespace byteps::sim
