// Waits for other threads that a signal can interrupt.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/event_flag.h"
#include "base/status.h"

namespace byteps::node {

// Called when a signal has interrupted a wait. False ends the wait with kAborted.
using KeepWaiting = std::function<bool()>;

// Blocks until `flag` is set; resumes after signals while `keep_waiting` returns true. Errors:
// kDeadlineExceeded, kAborted.
Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting);

}  // namespace byteps::node
