#include "transport/receive_buffer.h"

#include "base/check.h"
#include "base/copy.h"

namespace byteps::transport {

Bytes place_payload(const ReceiveBuffer& receive_buffer, Bytes lent) {
  if (receive_buffer.is_in_place()) return lent;
  if (receive_buffer.is_discard()) return {};
  const MutableBytes destination = receive_buffer.destination();
  BPS_CHECK(destination.size() == lent.size()) << destination.size() << " for " << lent.size();
  if (destination.data() != lent.data()) copy_bytes(destination, lent);
  return destination;
}

}  // namespace byteps::transport
