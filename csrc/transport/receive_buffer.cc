#include "transport/receive_buffer.h"

#include "base/check.h"
#include "base/copy.h"

namespace byteps::transport {

Bytes place_payload(const ReceiveBuffer& receive_buffer, Bytes payload) {
  if (receive_buffer.is_in_place()) return payload;
  if (receive_buffer.is_discard()) return {};
  const MutableBytes destination = receive_buffer.destination();
  BPS_CHECK(destination.size() == payload.size()) << destination.size() << " for " << payload.size();
  if (destination.data() == payload.data()) return destination;
  receive_buffer.is_cold() ? copy_to_cold(destination, payload) : copy_bytes(destination, payload);
  return destination;
}

}  // namespace byteps::transport
