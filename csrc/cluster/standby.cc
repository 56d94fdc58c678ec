#include "cluster/standby.h"

#include <utility>

namespace byteps::cluster {

Result<transport::Address> Standby::listen(const std::string& ip) {
  auto listener =
      control_tcp_.listen(loop_, {ip, 0}, [this](auto connection) { accept(std::move(connection)); });
  if (!listener) return listener.status();
  listener_ = std::move(*listener);
  return listener_->address();
}

// Connections that nobody starts do not read, so what nodes send waits as well.
void Standby::accept(std::unique_ptr<transport::Connection> connection) {
  if (scheduler_) return scheduler_->accept(std::move(connection));
  if (waiting_.size() < protocol::kMaxNodes) waiting_.push_back(std::move(connection));
}

Status Standby::on_replicate(const protocol::Replicate& message) {
  if (scheduler_) return data_loss("Replicate: the standby has taken over");
  return replica_.on_replicate(message, loop_.now_us());
}

void Standby::take_over() {
  if (scheduler_ || !replica_.is_ready()) return;
  scheduler_ = std::make_unique<Scheduler>(loop_, tcp_, std::move(replica_));
  for (auto& connection : std::exchange(waiting_, {})) scheduler_->accept(std::move(connection));
  relocation_ = std::make_unique<Relocation>(loop_, control_tcp_, scheduler_addresses_,
                                             listener_->address().to_string(),
                                             scheduler_->timeout_us() / protocol::kHeartbeatsPerTimeout);
}

void Standby::leave(UniqueFunction<void()> done) {
  if (!scheduler_) return done();
  scheduler_->ended().when_reached([this, done = std::move(done)]() mutable {
    loop_.post([this, done = std::move(done)]() mutable {
      relocation_->finish("the job has ended", std::move(done));
    });
  });
}

void Standby::shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> done) {
  if (!scheduler_) return done();
  relocation_->finish(text, [] {});
  scheduler_->shutdown(text, deadline_us, std::move(done));
}

void Standby::give_up(const Status& why) {
  if (scheduler_) scheduler_->give_up(why);
}

std::set<uint64_t> Standby::known_tensors() const {
  return scheduler_ ? scheduler_->known_tensors() : std::set<uint64_t>();
}

}  // namespace byteps::cluster
