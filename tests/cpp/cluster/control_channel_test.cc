#include "cluster/control_channel.h"

#include <gtest/gtest.h>

#include "cluster/harness.h"

namespace byteps::cluster {
namespace {

using protocol::Heartbeat;
using protocol::Lost;

// Two channels, and a raw connection that sends what no channel would send.
class ControlChannelTest : public testing::Test {
 protected:
  std::pair<std::unique_ptr<transport::Connection>, std::unique_ptr<transport::Connection>> pair() {
    return transport::make_inproc_pair(*loop_);
  }
  // Sends a frame unchanged to `other`, whose other end is `raw`.
  static void send_raw(transport::Connection& raw, Bytes head, Bytes payload) {
    run_on(raw.loop(), [&] { raw.send(head, {payload, {}}, nullptr); });
  }

  std::unique_ptr<EventLoop> loop_ = transport::make_loop();
};

TEST_F(ControlChannelTest, MessagesOfEverySizeArriveInOrder) {
  auto [one, other] = pair();
  ControlPeer sender(*loop_, std::move(one));
  ControlPeer receiver(*loop_, std::move(other));
  std::vector<Control> messages = {Heartbeat{}, Lost{StatusCode::kUnavailable, "rank 3 is lost"}};
  protocol::Placed placed{.name = "large", .tensor = 1, .locations = {}};
  placed.locations.resize(100'000);
  messages.emplace_back(placed);
  messages.emplace_back(Heartbeat{});
  receiver.closes_when_told_of_the_end = false;
  for (const Control& message : messages) sender.send(message);
  ASSERT_TRUE(receiver.heard.wait([&](const Heard& h) { return h.messages.size() == messages.size(); }));
  EXPECT_EQ(receiver.heard.get().messages, messages);
}

TEST_F(ControlChannelTest, AnErrorOfTheReceiverClosesBothEnds) {
  auto [one, other] = pair();
  ControlPeer sender(*loop_, std::move(one));
  ControlPeer receiver(*loop_, std::move(other));
  receiver.answer = [](ControlChannel&, const Control&) { return data_loss("not now"); };
  sender.send(Heartbeat{});
  EXPECT_EQ(receiver.why_closed().message(), "not now");
  EXPECT_EQ(sender.why_closed().code(), StatusCode::kUnavailable);
}

struct Garbage {
  const char* what;
  std::vector<std::byte> head;
  std::vector<std::byte> payload;
};

TEST_F(ControlChannelTest, BytesThatAreNoMessageCloseTheConnection) {
  const protocol::EncodedControl good = protocol::encode(Lost{StatusCode::kUnavailable, "rank 3 is lost"});
  const std::vector<std::byte> head(good.head.begin(), good.head.end());
  std::vector<Garbage> cases = {
      {"another version", head, good.payload},
      {"an unknown type", head, good.payload},
      {"half a head", {head.begin(), head.begin() + 4}, good.payload},
      {"half a payload", head, {good.payload.begin(), good.payload.begin() + 5}},
      {"no payload", head, {}},
      {"more than a message may have", head, std::vector<std::byte>(protocol::kMaxControlBytes + 1)},
  };
  cases[0].head[0] = std::byte{77};
  cases[1].head[1] = std::byte{77};
  for (const Garbage& garbage : cases) {
    auto [raw, other] = pair();
    ControlPeer receiver(*loop_, std::move(other));
    send_raw(*raw, garbage.head, garbage.payload);
    EXPECT_EQ(receiver.why_closed().code(), StatusCode::kDataLoss) << garbage.what;
    EXPECT_TRUE(receiver.heard.get().messages.empty()) << garbage.what;
    run_on(*loop_, [&connection = raw] { connection.reset(); });
  }
}

}  // namespace
}  // namespace byteps::cluster
