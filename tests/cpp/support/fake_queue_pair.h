// Queue pair and completion channel of a FakeNic, as the code under test sees them.
#pragma once

#include <atomic>
#include <memory>

#include "support/fake_wire_thread.h"

namespace byteps::transport::rdma::fake {

class FakeChannel final : public CompletionChannel {
 public:
  ~FakeChannel() override {
    BPS_CHECK(queue_pairs == 0) << "a channel outlives its queue pairs; " << queue_pairs << " are left";
  }
  int fd() const override { return events.fd(); }
  void* next() override {
    const auto event = events.pop();
    return event ? event->tag : nullptr;
  }

  FdQueue<ChannelEvent> events;
  std::atomic<int> queue_pairs{0};
};

Result<std::unique_ptr<QueuePair>> make_queue_pair(WireThread& thread, Card& card, FakeChannel& channel,
                                                   void* tag, const QueuePairOptions& options);

}  // namespace byteps::transport::rdma::fake
