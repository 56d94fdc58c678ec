// Replacements of libibverbs's functions, which record their arguments and return what the test
// specifies.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "transport/rdma/gid.h"
#include "transport/rdma/verbs_queue_pair.h"

namespace byteps::transport::rdma {

// Recorded arguments and return values to use.
struct Script {
  std::deque<abi::AsyncEvent> events;
  int error_after_events = EAGAIN;
  int acknowledged = 0;
  uint32_t most_inline = 1024;
  std::vector<std::pair<abi::QpAttr, int>> modified;
  std::vector<abi::SendWr> posted;
  uint32_t posted_arrivals = 0;
  std::deque<abi::Wc> completions;
  int poll_error = 0;
  unsigned access = 0;
  abi::Context context{};
  abi::CompletionChannel channel{};
  abi::Cq cq{};
  abi::QueuePair qp{};
  abi::Mr mr{};
};
inline Script* script = nullptr;

template <typename T>
int done(T*) {
  return 0;
}

inline abi::QueuePair* create_qp(abi::Pd*, abi::QpInitAttr* attr) {
  if (attr->capacity.max_inline_bytes > script->most_inline) {
    errno = EINVAL;
    return nullptr;
  }
  return &script->qp;
}

inline int post_send(abi::QueuePair*, abi::SendWr* first, abi::SendWr**) {
  for (; first; first = first->next) script->posted.push_back(*first);
  return 0;
}

inline int post_receive(abi::QueuePair*, abi::ReceiveWr* first, abi::ReceiveWr**) {
  for (; first; first = first->next) ++script->posted_arrivals;
  return 0;
}

inline int poll_cq(abi::Cq*, int most, abi::Wc* into) {
  if (script->poll_error != 0) return script->poll_error;
  int count = 0;
  for (; count < most && !script->completions.empty(); ++count) {
    into[count] = script->completions.front();
    script->completions.pop_front();
  }
  return count;
}

inline int get_async_event(abi::Context*, abi::AsyncEvent* into) {
  if (script->events.empty()) {
    errno = script->error_after_events;
    return -1;
  }
  *into = script->events.front();
  script->events.pop_front();
  return 0;
}

inline VerbsLibrary make_library() {
  VerbsLibrary verbs{};
  verbs.get_async_event = get_async_event;
  verbs.ack_async_event = [](abi::AsyncEvent*) { ++script->acknowledged; };
  verbs.reg_mr = [](abi::Pd*, void*, size_t, int access) {
    script->access = static_cast<unsigned>(access);
    return &script->mr;
  };
  verbs.reg_mr_iova2 = [](abi::Pd*, void*, size_t, uint64_t, unsigned access) {
    script->access = access;
    return &script->mr;
  };
  verbs.dereg_mr = done;
  verbs.create_comp_channel = [](abi::Context*) { return &script->channel; };
  verbs.destroy_comp_channel = done;
  verbs.create_cq = [](abi::Context*, int, void*, abi::CompletionChannel*, int) { return &script->cq; };
  verbs.destroy_cq = done;
  verbs.create_qp = create_qp;
  verbs.modify_qp = [](abi::QueuePair*, abi::QpAttr* attr, int mask) {
    script->modified.emplace_back(*attr, mask);
    return 0;
  };
  verbs.destroy_qp = done;
  return verbs;
}

class FakeVerbsTest : public ::testing::Test {
 protected:
  FakeVerbsTest() {
    script = &script_;
    script_.context.ops.post_send = post_send;
    script_.context.ops.post_receive = post_receive;
    script_.context.ops.poll_cq = poll_cq;
    script_.channel.fd = channel_fd_.get();
    script_.cq.context = script_.qp.context = &script_.context;
    script_.qp.number = 0x123456;
    device_.attr.max_qp_wr = 1000;
    device_.attr.max_cqe = 1500;
    info_.max_message_bytes = 1 << 20;
    info_.mtu_bytes = 4096;
    info_.gid_index = 3;
    info_.lid = 17;
    info_.gid = parse_gid("fe80::7").value();
  }

  std::unique_ptr<QueuePair> make(const VerbsOptions& options = {}, const QueuePairOptions& queues = {}) {
    if (!channel_) channel_ = std::move(*VerbsChannel::make(device_));
    auto made =
        VerbsQueuePair::make(device_, info_, options, static_cast<VerbsChannel&>(*channel_), nullptr, queues);
    EXPECT_TRUE(made) << made.status();
    return std::move(*made);
  }
  const abi::QpAttr& to_receive() const { return script_.modified.at(1).first; }
  const abi::QpAttr& to_send() const { return script_.modified.at(2).first; }
  void expect_events(std::deque<abi::AsyncEvent> events, std::vector<NicEvent> expected) {
    const auto count = static_cast<int>(events.size());
    script_.events = std::move(events);
    script_.acknowledged = 0;
    for (const NicEvent each : expected) EXPECT_EQ(next_event_of(device_, 2), each);
    EXPECT_EQ(script_.acknowledged, count);
  }

  Script script_;
  const UniqueFd channel_fd_{::eventfd(0, EFD_CLOEXEC)};
  VerbsLibrary verbs_ = make_library();
  VerbsDevice device_{verbs_, "fake0", {}, {&script_.context, done}, {nullptr, done}};
  NicInfo info_;
  const QueuePairAddress other_{.number = 0xabcdef,
                                .packet_sequence = 0x345678,
                                .lid = 9,
                                .gid = parse_gid("::ffff:10.0.0.9").value(),
                                .mtu_bytes = 2048};
  std::unique_ptr<CompletionChannel> channel_;
};

}  // namespace byteps::transport::rdma
