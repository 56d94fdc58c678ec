#include "node/waiting.h"

namespace byteps::node {

Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  // Checks for a signal that has arrived before the wait, because it does not interrupt the wait.
  if (!keep_waiting()) return aborted("interrupted");
  while (true) {
    switch (flag.wait(deadline_us)) {
      case EventFlag::Wake::kSet: return Status::ok();
      case EventFlag::Wake::kTimeout: return deadline_exceeded("timed out");
      case EventFlag::Wake::kInterrupted:
        if (!keep_waiting()) return aborted("interrupted");
    }
  }
}

}  // namespace byteps::node
