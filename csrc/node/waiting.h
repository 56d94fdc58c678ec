// Waiting for what other threads do, so that a signal can end it.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/event_flag.h"
#include "base/status.h"

namespace byteps::node {

// Called when a signal has interrupted a wait; false gives the wait up (with kAborted).
using KeepWaiting = std::function<bool()>;

// Waits for `flag` through interruptions that `keep_waiting` shrugs off. kDeadlineExceeded, kAborted.
Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting);

}  // namespace byteps::node
