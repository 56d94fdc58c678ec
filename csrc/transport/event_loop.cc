#include "transport/event_loop.h"

#include <utility>

#include "base/check.h"
#include "base/event_flag.h"

namespace byteps::transport {

bool EventLoop::run_and_wait(Task task) {
  BPS_CHECK(!in_loop()) << "the loop would wait for itself";
  // Travels with the task, so that the waiter also learns that it was destroyed unrun.
  struct Completion {
    explicit Completion(EventFlag* flag) : flag(flag) {}
    Completion(Completion&& other) noexcept : flag(std::exchange(other.flag, nullptr)) {}
    Completion& operator=(Completion&&) = delete;
    ~Completion() {
      if (flag) flag->set();
    }
    EventFlag* flag;
  };
  EventFlag done;
  bool ran = false;
  post([task = std::move(task), &ran, completion = Completion(&done)]() mutable {
    task();
    ran = true;
  });
  while (done.wait(kNever) != EventFlag::Wake::kSet) {
  }
  return ran;
}

}  // namespace byteps::transport
