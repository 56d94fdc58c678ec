#include "support/fake_queue_pair.h"

#include <cerrno>

namespace byteps::transport::rdma::fake {
namespace {

class FakeQueuePair final : public QueuePair {
 public:
  FakeQueuePair(WireThread& thread, Card& card, FakeChannel& channel, void* tag,
                const QueuePairOptions& options)
      : thread_(thread),
        card_(card),
        channel_(channel),
        options_(options),
        completions_(channel.events, tag) {
    options_.max_inline_bytes = std::min(options.max_inline_bytes, card.options.max_inline_bytes);
    ++channel_.queue_pairs;
  }
  ~FakeQueuePair() override;

  Status start();
  const QueuePairAddress& address() const override { return address_; }
  uint32_t max_inline_bytes() const override { return options_.max_inline_bytes; }
  Status connect(const QueuePairAddress& other) override;
  Status post(std::span<const Write> writes) override;
  Status post_arrivals(uint32_t count) override;
  Result<size_t> poll(std::span<Completion> into) override;
  Status arm() override;
  std::string describe(int status) const override;
  bool is_path_failure(int status) const override { return status == kRetryExceeded || status == kFlushed; }
  void fail() override {
    thread_.run([&](Wire& wire) { wire.fail(*end_); });
  }

 private:
  std::string name() const {
    return "queue pair " + std::to_string(address_.number) + " of " + card_.info.to_string();
  }
  PostedWrite take(const Write& write) const;

  WireThread& thread_;
  Card& card_;  // its constant members only
  FakeChannel& channel_;
  QueuePairOptions options_;
  CompletionQueue completions_;
  End* end_ = nullptr;  // used by the wire
  QueuePairAddress address_;
  // Used by the queue pair's thread. Without a lock on purpose: use by two threads is a race to be
  // detected.
  bool is_connected_ = false;
  uint64_t writes_posted_ = 0;
  uint64_t writes_done_ = 0;
  uint32_t arrivals_left_ = 0;
  uint64_t calls_ = 0;
};

FakeQueuePair::~FakeQueuePair() {
  if (end_ != nullptr) thread_.run([&](Wire& wire) { wire.remove_end(*end_); });
  --channel_.queue_pairs;
}

Status FakeQueuePair::start() {
  Result<End*> end = internal("not asked");
  thread_.run([&](Wire& wire) {
    end = wire.add_end(card_, completions_);
    if (end) address_ = (*end)->address;
  });
  if (!end) return end.status();
  end_ = *end;
  return Status::ok();
}

Status FakeQueuePair::connect(const QueuePairAddress& other) {
  if (is_connected_) return failed_precondition(name() + " is connected already");
  const int mtu_bytes = other.mtu_bytes;
  const bool has_mtu = mtu_bytes >= 256 && mtu_bytes <= 4096 && (mtu_bytes & (mtu_bytes - 1)) == 0;
  if (!has_mtu || other.number >> 24 != 0 || other.packet_sequence >> 24 != 0) {
    return invalid_argument("connecting " + name() +
                            ": expected numbers of 24 bits and an MTU of 256 to 4096, got " +
                            std::to_string(other.number) + ", " + std::to_string(other.packet_sequence) +
                            ", " + std::to_string(mtu_bytes));
  }
  Status status;
  thread_.run([&](Wire&) {
    auto& failures = end_->card->connect_failures;
    if (failures.empty()) {
      end_->other = other;
    } else {
      status = failures.front();
      failures.pop_front();
    }
  });
  is_connected_ = status.is_ok();
  return status;
}

PostedWrite FakeQueuePair::take(const Write& write) const {
  PostedWrite posted{.write = write, .is_inlined = false, .inlined = {}, .hash = {}};
  if (write.local_key == 0 && write.data.size() <= options_.max_inline_bytes) {
    posted.is_inlined = true;
    posted.inlined.assign(write.data.begin(), write.data.end());
  }
  return posted;
}

Status FakeQueuePair::post(std::span<const Write> writes) {
  if (!is_connected_) return failed_precondition("posting a write: " + name() + " is not connected");
  std::vector<PostedWrite> taken;
  for (const Write& write : writes) {
    if (writes_posted_ - writes_done_ == options_.max_writes) break;
    taken.push_back(take(write));
    ++writes_posted_;
  }
  const bool is_all = taken.size() == writes.size();
  thread_.post(
      [end = end_, taken = std::move(taken)](Wire& wire) mutable { wire.post(*end, std::move(taken)); });
  return is_all ? Status::ok() : from_errno("posting a write: " + name() + " is full", ENOMEM);
}

Status FakeQueuePair::post_arrivals(uint32_t count) {
  if (count > options_.max_arrivals - arrivals_left_) {
    return from_errno("posting arrivals: " + name() + " is full", ENOMEM);
  }
  arrivals_left_ += count;
  thread_.post([end = end_, count](Wire& wire) { wire.post_arrivals(*end, count); });
  return Status::ok();
}

Result<size_t> FakeQueuePair::poll(std::span<Completion> into) {
  ++calls_;
  size_t count = 0;
  while (count < into.size()) {
    const auto done = completions_.pop();
    if (!done) break;
    if (done->writes > 0) {
      writes_done_ = done->writes;
    } else {
      --arrivals_left_;
    }
    into[count++] = done->completion;
  }
  return count;
}

Status FakeQueuePair::arm() {
  ++calls_;
  completions_.arm();
  return Status::ok();
}

std::string FakeQueuePair::describe(int status) const {
  const auto named = [&](const char* name) { return name + (" (" + std::to_string(status) + ")"); };
  switch (status) {
    case 0: return named("success");
    case kLocalLengthError: return named("local length error");
    case kLocalProtectionError: return named("local protection error");
    case kFlushed: return named("work request flushed");
    case kRemoteAccessError: return named("remote access error");
    case kRetryExceeded: return named("transport retry counter exceeded");
    case kReceiverNotReadyExceeded: return named("receiver-not-ready retry counter exceeded");
    default: return named("unknown");
  }
}

}  // namespace

Result<std::unique_ptr<QueuePair>> make_queue_pair(WireThread& thread, Card& card, FakeChannel& channel,
                                                   void* tag, const QueuePairOptions& options) {
  auto pair = std::make_unique<FakeQueuePair>(thread, card, channel, tag, options);
  BPS_RETURN_IF_ERROR(pair->start());
  return std::unique_ptr<QueuePair>(std::move(pair));
}

}  // namespace byteps::transport::rdma::fake
