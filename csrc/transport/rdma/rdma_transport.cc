#include "transport/rdma/rdma_transport.h"

#include <atomic>
#include <map>
#include <utility>

#include "base/annotations.h"
#include "base/check.h"
#include "base/log.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport {
namespace {

using rdma::EndpointOffer;
using rdma::NicLoop;
using rdma::Rail;
using rdma::RdmaConnection;

// The rails of a process, and their per-loop parts while they are in use.
class Rails {
 public:
  explicit Rails(std::vector<std::unique_ptr<rdma::Nic>> nics) {
    for (auto& nic : nics) rails_.push_back(std::make_shared<Rail>(std::move(nic)));
  }
  size_t size() const { return rails_.size(); }
  Rail& rail(size_t index) const { return *rails_[index]; }
  // Returns the rails in turn, without those whose device is gone.
  Result<std::shared_ptr<NicLoop>> next(EventLoop& loop, uint16_t& rail) {
    Result<std::shared_ptr<NicLoop>> found = unavailable("RDMA: no device");
    for (size_t tries = 0; tries < rails_.size() && !found; ++tries) {
      rail = static_cast<uint16_t>(turn_.fetch_add(1) % rails_.size());
      found = at(loop, rail);
    }
    return found;
  }
  Result<std::shared_ptr<NicLoop>> at(EventLoop& loop, size_t rail) {
    MutexLock lock(mutex_);
    std::weak_ptr<NicLoop>& known = loops_[{&loop, rails_[rail].get()}];
    if (auto held = known.lock(); held && rails_[rail]->state().is_ok()) return held;
    auto made = NicLoop::create(loop, rails_[rail]);
    if (made) known = *made;
    return made;
  }

 private:
  std::vector<std::shared_ptr<Rail>> rails_;
  std::atomic<size_t> turn_{0};
  Mutex mutex_;
  std::map<std::pair<EventLoop*, Rail*>, std::weak_ptr<NicLoop>> loops_ BPS_GUARDED_BY(mutex_);
};

// Sets up one connection, starting with its TCP connection. Owned by its deadline's timer.
class RdmaHandshake : public std::enable_shared_from_this<RdmaHandshake> {
 public:
  using OnDone = UniqueFunction<void(Result<std::unique_ptr<Connection>>)>;
  RdmaHandshake(std::unique_ptr<Connection> tcp, const rdma::ConnectionOptions& options, OnDone on_done)
      : loop_(tcp->loop()),
        connection_(std::make_unique<RdmaConnection>(std::move(tcp), options)),
        on_done_(std::move(on_done)) {}

  RdmaConnection& begin(TimeUs deadline_us) {
    deadline_ = loop_.run_at(deadline_us, [self = shared_from_this()] {
      self->finish(unavailable(self->connection_->peer() + ": " + rdma::kNoRdmaPath));
    });
    return *connection_;
  }
  RdmaConnection::OnReady on_ready() {
    return
        [this](const Status& status) { finish(status, status.is_ok() ? std::move(connection_) : nullptr); };
  }

 private:
  // Posted, because the connection may be the caller and the callback may destroy it. The deadline
  // and the connection's end can come in the same pass of the loop.
  void finish(const Status& status, std::unique_ptr<RdmaConnection> ready = nullptr) {
    if (!on_done_) return;
    loop_.post([self = shared_from_this(), on_done = std::exchange(on_done_, nullptr), status,
                ready = std::move(ready)]() mutable {
      if (!status.is_ok()) return on_done(status);
      on_done(std::unique_ptr<Connection>(std::move(ready)));
    });
    loop_.cancel(deadline_);
  }

  EventLoop& loop_;
  std::unique_ptr<RdmaConnection> connection_;
  OnDone on_done_;
  EventLoop::TimerId deadline_ = 0;
};

class RdmaListener final : public Listener {
 public:
  RdmaListener(std::unique_ptr<Listener> tcp, std::vector<std::shared_ptr<NicLoop>> held,
               std::shared_ptr<AcceptCallback> on_accept)
      : tcp_(std::move(tcp)), held_(std::move(held)), on_accept_(std::move(on_accept)) {}
  const Address& address() const override { return tcp_->address(); }

 private:
  const std::unique_ptr<Listener> tcp_;
  // Keeps memory registrations between connections.
  const std::vector<std::shared_ptr<NicLoop>> held_;
  const std::shared_ptr<AcceptCallback> on_accept_;  // not called after this object is destroyed
};

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(RdmaOptions options, Result<std::vector<std::unique_ptr<rdma::Nic>>> nics,
                std::unique_ptr<Transport> tcp)
      : options_(std::move(options)),
        tcp_(tcp ? std::move(tcp) : make_tcp_transport(options_.stream)),
        viable_(nics && nics->empty() ? unavailable("RDMA: no device") : nics.status()),
        rails_(std::make_shared<Rails>(nics ? std::move(*nics) : std::vector<std::unique_ptr<rdma::Nic>>())) {
  }

  const char* name() const override { return "rdma"; }
  Status viable() const override { return viable_; }
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           AcceptCallback on_accept) override;
  void connect(EventLoop& loop, const Address& address, ConnectLimits limits,
               ConnectCallback on_done) override;
  const Rails& rails() const { return *rails_; }

 private:
  rdma::ConnectionOptions connection_options() const {
    return {.max_payload_bytes = options_.stream.max_payload_bytes,
            .spin_us = options_.spin_us,
            .renewal_limit_us = options_.renewal_limit_us};
  }

  const RdmaOptions options_;
  const std::unique_ptr<Transport> tcp_;
  const Status viable_;
  const std::shared_ptr<Rails> rails_;
};

Result<std::unique_ptr<Listener>> RdmaTransport::listen(EventLoop& loop, const Address& address,
                                                        AcceptCallback on_accept) {
  BPS_RETURN_IF_ERROR(viable_);
  auto accepted = std::make_shared<AcceptCallback>(std::move(on_accept));
  const TimeUs timeout_us = options_.introduction_timeout_us;
  const auto meet = [&loop, rails = rails_, options = connection_options(), timeout_us,
                     weak = std::weak_ptr(accepted)](std::unique_ptr<Connection> tcp) {
    const auto done = [weak, peer = tcp->peer()](Result<std::unique_ptr<Connection>> connection) {
      const auto accepted = weak.lock();
      if (!accepted) return;  // the listener is gone
      if (connection) return (*accepted)(std::move(*connection));
      // Logged at kInfo only: the connecting side reports more and falls back to TCP.
      BPS_LOG(kInfo) << "RDMA: no connection with " << peer << ": " << connection.status().message();
    };
    const auto meeting = std::make_shared<RdmaHandshake>(std::move(tcp), options, done);
    meeting->begin(now_us() + timeout_us)
        .await_introduction(
            [&loop, rails](const EndpointOffer& offer) {
              return rails->at(loop, offer.rail % rails->size());
            },
            meeting->on_ready());
  };
  auto listener = tcp_->listen(loop, address, meet);
  if (!listener) return listener.status().with_context("rdma");
  std::vector<std::shared_ptr<NicLoop>> held;
  const auto hold = [&] {
    for (size_t rail = 0; rail < rails_->size(); ++rail) {
      if (auto nic_loop = rails_->at(loop, rail)) held.push_back(std::move(*nic_loop));
    }
  };
  loop.in_loop() ? hold() : static_cast<void>(loop.run_and_wait(hold));
  return std::unique_ptr<Listener>(
      std::make_unique<RdmaListener>(std::move(*listener), std::move(held), std::move(accepted)));
}

void RdmaTransport::connect(EventLoop& loop, const Address& address, ConnectLimits limits,
                            ConnectCallback on_done) {
  if (!viable_.is_ok()) {
    loop.post([on_done = std::move(on_done), why = viable_]() mutable { on_done(why); });
    return;
  }
  tcp_->connect(
      loop, address, limits,
      [&loop, rails = rails_, options = connection_options(), timeout_us = options_.introduction_timeout_us,
       on_done = std::move(on_done)](Result<std::unique_ptr<Connection>> tcp) mutable {
        if (!tcp) return on_done(tcp.status());
        uint16_t rail = 0;
        auto nic_loop = rails->next(loop, rail);
        if (!nic_loop) return on_done(nic_loop.status());
        const auto meeting = std::make_shared<RdmaHandshake>(std::move(*tcp), options, std::move(on_done));
        meeting->begin(now_us() + timeout_us).introduce(std::move(*nic_loop), rail, meeting->on_ready());
      });
}

}  // namespace

std::unique_ptr<Transport> make_rdma_transport(RdmaOptions options,
                                               Result<std::vector<std::unique_ptr<rdma::Nic>>> nics,
                                               std::unique_ptr<Transport> tcp) {
  return std::make_unique<RdmaTransport>(std::move(options), std::move(nics), std::move(tcp));
}

rdma::RegistrationCounts registration_counts(const Transport& rdma) {
  const auto* transport = dynamic_cast<const RdmaTransport*>(&rdma);
  BPS_CHECK(transport) << "not the RDMA transport: " << rdma.name();
  rdma::RegistrationCounts sum;
  for (size_t rail = 0; rail < transport->rails().size(); ++rail) {
    const rdma::RegistrationCounts counts = transport->rails().rail(rail).registrations().counts();
#define BPS_ADD(name, metric, meaning) sum.name += counts.name;
    BPS_REGISTRATION_COUNTS(BPS_ADD)
#undef BPS_ADD
  }
  return sum;
}

}  // namespace byteps::transport
