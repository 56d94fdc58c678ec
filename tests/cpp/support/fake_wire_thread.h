// The thread of a FakeFabric, the only one that touches a Wire.
//
// Jobs are passed through a lock-free list. A lock would order the wire's earlier work before the
// next poster's later work and so hide races from ThreadSanitizer.
#pragma once

#include <atomic>
#include <thread>

#include "base/event_flag.h"
#include "base/unique_fd.h"
#include "base/unique_function.h"
#include "support/fake_wire.h"

namespace byteps::transport::rdma::fake {

class WireThread {
 public:
  using Work = UniqueFunction<void(Wire&)>;

  explicit WireThread(const FakeFabricOptions& options);
  ~WireThread();

  // Runs `work` in the order of the calls. Does not order the wire's work before the caller's next
  // actions.
  void post(Work work);
  // Waits until `work` and everything before it is done.
  template <typename F>
  void run(F work) {
    EventFlag done;
    post([&](Wire& wire) {
      work(wire);
      done.set();
    });
    while (!done.is_set()) done.wait(kNever);
  }

 private:
  struct Job {
    Work work;
    Job* next = nullptr;
  };
  void serve();
  void run_jobs();
  void wait_until(TimeUs due_us);

  Wire wire_;
  std::atomic<Job*> jobs_{nullptr};  // most recent first
  bool stop_ = false;                // used by the wire's thread
  UniqueFd wake_;
  std::thread thread_;
};

}  // namespace byteps::transport::rdma::fake
