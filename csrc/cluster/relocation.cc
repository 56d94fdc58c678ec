#include "cluster/relocation.h"

#include <utility>

namespace byteps::cluster {
namespace {

constexpr TimeUs kPauseUs = 1'000'000;
constexpr TimeUs kConnectUs = 500'000;
constexpr TimeUs kFarewellUs = 1'000'000;

}  // namespace

Relocation::Relocation(transport::EventLoop& loop, transport::Transport& tcp,
                       std::vector<transport::Address> addresses, std::string job_address, TimeUs beat_us)
    : loop_(loop),
      tcp_(tcp),
      addresses_(std::move(addresses)),
      job_address_(std::move(job_address)),
      beat_us_(beat_us) {
  if (!addresses_.empty()) try_next();
}

void Relocation::try_next() {
  if (finished_) return;
  tcp_.connect(loop_, addresses_[attempt_++ % addresses_.size()], loop_.now_us() + kConnectUs,
               [this](auto connection) { on_connected(std::move(connection)); });
}

void Relocation::on_connected(Result<std::unique_ptr<transport::Connection>> connection) {
  if (finished_) return;
  if (!connection) {
    loop_.run_at(loop_.now_us() + kPauseUs, [this] { try_next(); });
    return;
  }
  channel_ = std::make_unique<ControlChannel>(std::move(*connection), *this);
  channel_->start();
  channel_->send(protocol::Standby{job_address_});
  beat();
}

void Relocation::beat() {
  if (!channel_ || finished_) return;
  channel_->send(protocol::Heartbeat{});
  loop_.run_at(loop_.now_us() + beat_us_, [this, channel = channel_.get()] {
    if (channel == channel_.get()) beat();
  });
}

void Relocation::finish(const std::string& text, UniqueFunction<void()> done) {
  finished_ = true;
  if (!channel_) return done();
  finish_done_ = std::move(done);
  channel_->send(protocol::Finished{text});
  channel_->close_when_sent(loop_.now_us() + kFarewellUs);
}

Status Relocation::on_control(ControlChannel&, const protocol::Control& message) {
  if (std::holds_alternative<protocol::Heartbeat>(message) || finished_) return Status::ok();
  return data_loss("it does not send whoever joins to the job's scheduler");
}

// A new job may have begun there: that ends with its own scheduler.
void Relocation::on_channel_closed(ControlChannel&, const Status&) {
  loop_.post([doomed = std::move(channel_)] {});
  if (finish_done_) return std::exchange(finish_done_, nullptr)();
  loop_.run_at(loop_.now_us() + kPauseUs, [this] { try_next(); });
}

}  // namespace byteps::cluster
