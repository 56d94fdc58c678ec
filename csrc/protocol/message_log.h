// Messages of one direction of a control connection that have to be sent again if another
// connection takes its place. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "protocol/message.h"

namespace byteps::protocol {

class MessageLog {
 public:
  void push(Control message) { unconfirmed_.push_back(std::move(message)); }
  // The receiver has got the first `count` of all messages. False: there are not so many.
  bool confirm(uint64_t count) {
    if (count > total()) return false;
    for (; confirmed_ < count; ++confirmed_) unconfirmed_.pop_front();
    return true;
  }
  void confirm_all() { confirm(total()); }
  // In the order of push().
  const std::deque<Control>& unconfirmed() const { return unconfirmed_; }
  uint64_t total() const { return confirmed_ + unconfirmed_.size(); }

 private:
  uint64_t confirmed_ = 0;
  std::deque<Control> unconfirmed_;
};

}  // namespace byteps::protocol
