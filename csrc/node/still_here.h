// Someone who waits for other ranks: tells the scheduler what for, and asks it what they wait for (protocol/notices.h).
#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "base/unique_function.h"
#include "cluster/client.h"
#include "protocol/message.h"
#include "protocol/notices.h"

namespace byteps::node {

// Not thread-safe; the client outlives it.
class StillHere {
 public:
  // The others are told a little before they are asked, so that who began to wait soon after knows of each other.
  static constexpr TimeUs kTellUs = protocol::Notices::kFirstUs - 1'000'000;

  StillHere(cluster::Client& client, UniqueFunction<std::string()> what, TimeUs since_us)
      : client_(client), what_(std::move(what)), notices_(since_us), next_us_(since_us + kTellUs) {}
  ~StillHere() {
    if (has_told()) client_.send(protocol::Waits{});
  }
  StillHere(const StillHere&) = delete;
  StillHere& operator=(const StillHere&) = delete;

  TimeUs next_us() const { return next_us_; }
  bool has_told() const { return !told_.empty(); }
  void tell() {
    told_ = what_();
    client_.send(protocol::Waits{told_, notices_.due(now_us())});
    next_us_ = notices_.next_us();
  }

 private:
  cluster::Client& client_;
  UniqueFunction<std::string()> what_;
  protocol::Notices notices_;
  TimeUs next_us_;
  std::string told_;
};

}  // namespace byteps::node
