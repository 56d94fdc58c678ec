#include "sim/sim_channel.h"

#include "sim/sim_link.h"

namespace byteps::sim {

void send_control(World& world, Endpoint& endpoint, const protocol::Control& message) {
  const protocol::EncodedControl encoded = protocol::encode(message);
  Frame frame{.head = {encoded.head.begin(), encoded.head.end()},
              .payload = make_view(world, endpoint.process(), encoded.payload),
              .reply_space = {}};
  endpoint.send(std::move(frame), nullptr);
}

Result<protocol::Control> read_control(const Frame& frame) {
  const Status head = protocol::check_control_head(frame.head, frame.payload.size);
  if (!head.is_ok()) return head;
  return protocol::decode_control(frame.head, frame.payload.read());
}

}  // namespace byteps::sim
