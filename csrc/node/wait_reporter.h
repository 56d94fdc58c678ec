// Reports one wait for other ranks: tells the scheduler what this rank waits for, and asks what the
// other ranks wait for (protocol/notice_timer.h).
#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "base/unique_function.h"
#include "cluster/client.h"
#include "protocol/message.h"
#include "protocol/notice_timer.h"

namespace byteps::node {

// Not thread-safe. The client must outlive it. The destructor tells the scheduler that the wait is
// over.
class WaitReporter {
 public:
  // When the scheduler is first told: a little before the first question, so that ranks that began
  // to wait at almost the same time know of each other.
  static constexpr TimeUs kTellUs = protocol::NoticeTimer::kFirstUs - 1'000'000;

  WaitReporter(cluster::Client& client, UniqueFunction<std::string()> what, TimeUs since_us)
      : client_(client), what_(std::move(what)), notices_(since_us), next_us_(since_us + kTellUs) {}
  ~WaitReporter() {
    if (has_told()) client_.send(protocol::Waits{});
  }
  WaitReporter(const WaitReporter&) = delete;
  WaitReporter& operator=(const WaitReporter&) = delete;

  TimeUs next_us() const { return next_us_; }
  bool has_told() const { return !told_.empty(); }
  void tell() {
    told_ = what_();
    client_.send(protocol::Waits{told_, notices_.due(client_.now_us())});
    next_us_ = notices_.next_us();
  }

 private:
  cluster::Client& client_;
  UniqueFunction<std::string()> what_;
  protocol::NoticeTimer notices_;
  TimeUs next_us_;
  std::string told_;
};

}  // namespace byteps::node
