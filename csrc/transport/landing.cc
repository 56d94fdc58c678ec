#include "transport/landing.h"

#include <cstring>

#include "base/check.h"

namespace byteps::transport {

Bytes land(const Landing& landing, Bytes lent) {
  if (landing.is_borrow()) return lent;
  if (landing.is_discard()) return {};
  const MutableBytes destination = landing.destination();
  BPS_CHECK(destination.size() == lent.size()) << destination.size() << " for " << lent.size();
  if (destination.data() != lent.data()) std::memcpy(destination.data(), lent.data(), lent.size());
  return destination;
}

}  // namespace byteps::transport
