#include "transport/landing.h"

#include "base/check.h"
#include "base/copy.h"

namespace byteps::transport {

Bytes land(const Landing& landing, Bytes lent) {
  if (landing.is_borrow()) return lent;
  if (landing.is_discard()) return {};
  const MutableBytes destination = landing.destination();
  BPS_CHECK(destination.size() == lent.size()) << destination.size() << " for " << lent.size();
  if (destination.data() != lent.data()) copy_bytes(destination, lent);
  return destination;
}

}  // namespace byteps::transport
