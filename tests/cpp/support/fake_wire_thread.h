// The thread of a FakeFabric, and the only one that touches a Wire.
//
// Jobs come to it through a list without a lock: a lock would order what the wire did before with whatever its next
// poster does after, and hide races from ThreadSanitizer.
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

  // Done in the order of the calls; nothing of the wire's doings is ordered before what the caller does next.
  void post(Work work);
  // Waits until it is done, and with it what the wire was about.
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
  std::atomic<Job*> jobs_{nullptr};  // the latest first
  bool stop_ = false;                // of the wire's thread
  UniqueFd wake_;
  std::thread thread_;
};

}  // namespace byteps::transport::rdma::fake
