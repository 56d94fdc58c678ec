// Shared by the tests of cluster/: the other end of a control connection, which records all
// messages.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/control_channel.h"
#include "transport/harness.h"

namespace byteps::cluster {

// Longer than a test.
inline constexpr TimeUs kLongUs = 60'000'000;

using protocol::Control;
using transport::Acceptor;
using transport::Address;
using transport::EventLoop;
using transport::run_on;
using transport::soon_us;
using transport::StoppedLoop;
using transport::Watched;

inline const Address kAnyPort{"127.0.0.1", 0};

inline std::unique_ptr<transport::Transport> make_tcp(const std::string& secret = "a secret of the test") {
  transport::TcpOptions options;
  options.credentials = {secret, "job 7"};
  return transport::make_tcp_transport(std::move(options));
}

struct Heard {
  std::vector<Control> messages;
  std::vector<Status> closed;
};

class ControlPeer final : public ControlEvents {
 public:
  ControlPeer(EventLoop& loop, std::unique_ptr<transport::Connection> connection)
      : loop_(loop), channel_(std::make_unique<ControlChannel>(std::move(connection), *this)) {
    run_on(loop_, [this] { channel_->start(); });
  }
  ~ControlPeer() override {
    if (!loop_.run_and_wait([this] { channel_.reset(); })) channel_.reset();
  }

  // Called after the message was recorded.
  std::function<Status(ControlChannel&, const Control&)> answer;
  bool closes_when_told_of_the_end = true;  // nodes do so
  Watched<Heard> heard;

  void send(const Control& message) {
    run_on(loop_, [&] { channel_->send(message); });
  }
  void close() {
    run_on(loop_, [this] { channel_->close(); });
  }
  // The first message of this type; none if it has not arrived by the test's deadline.
  template <typename T>
  std::optional<T> wait_for() {
    std::optional<T> found;
    heard.wait([&found](const Heard& h) {
      for (const Control& message : h.messages) {
        if (const T* candidate = std::get_if<T>(&message)) found = *candidate;
        if (found) break;
      }
      return found.has_value();
    });
    return found;
  }
  // The reason why the other end closed the connection.
  Status why_closed() {
    if (!heard.wait([](const Heard& h) { return !h.closed.empty(); })) return internal("not closed in time");
    return heard.get().closed.front();
  }
  const std::string& address() const { return channel_->peer(); }

  Status on_control(ControlChannel& channel, const Control& message) override {
    heard.update([&message](Heard& h) { h.messages.push_back(message); });
    const bool is_end = std::holds_alternative<protocol::Lost>(message) ||
                        std::holds_alternative<protocol::Finished>(message);
    if (is_end && closes_when_told_of_the_end) channel.close();
    return answer ? answer(channel, message) : Status::ok();
  }
  void on_channel_closed(ControlChannel&, const Status& why) override {
    heard.update([&why](Heard& h) { h.closed.push_back(why); });
  }

 private:
  EventLoop& loop_;
  std::unique_ptr<ControlChannel> channel_;
};

inline protocol::Join join_of(protocol::Role role, int32_t rank) {
  protocol::Join join;
  join.self.role = role;
  join.self.rank = rank;
  join.self.host = "h" + std::to_string(rank);
  join.self.machine = join.self.host;
  join.self.pid = 100 + static_cast<uint64_t>(rank);
  join.self.endpoints = {{"tcp", {"127.0.0.1:9"}}};
  return join;
}

}  // namespace byteps::cluster
