#include "support/fake_wire_thread.h"

#include <poll.h>
#include <sys/eventfd.h>

#include "base/check.h"

namespace byteps::transport::rdma::fake {

WireThread::WireThread(const FakeFabricOptions& options)
    : wire_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  BPS_CHECK(wake_.valid()) << "eventfd";
  thread_ = std::thread([this] { serve(); });
}

WireThread::~WireThread() {
  run([this](Wire& wire) {
    BPS_CHECK(wire.is_empty()) << "a FakeNic outlives its FakeFabric";
    stop_ = true;
  });
  thread_.join();
}

void WireThread::post(Work work) {
  auto* job = new Job{std::move(work), jobs_.load(std::memory_order_relaxed)};
  while (!jobs_.compare_exchange_weak(job->next, job, std::memory_order_release, std::memory_order_relaxed)) {
  }
  eventfd_write(wake_.get(), 1);
}

void WireThread::run_jobs() {
  Job* oldest = nullptr;
  for (Job* job = jobs_.exchange(nullptr, std::memory_order_acquire); job != nullptr;) {
    Job* next = std::exchange(job->next, oldest);
    oldest = std::exchange(job, next);
  }
  while (oldest != nullptr) {
    const std::unique_ptr<Job> job(std::exchange(oldest, oldest->next));
    job->work(wire_);
  }
}

void WireThread::serve() {
  while (true) {
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    run_jobs();
    if (stop_) return;
    wait_until(wire_.step(now_us()));
  }
}

void WireThread::wait_until(TimeUs due_us) {
  const TimeUs wait_us = due_us == kNever ? kNever : due_us - now_us();
  if (wait_us <= 0) return;
  const timespec timeout{wait_us / 1'000'000, (wait_us % 1'000'000) * 1000};
  pollfd woken{wake_.get(), POLLIN, 0};
  ppoll(&woken, 1, due_us == kNever ? nullptr : &timeout, nullptr);
}

}  // namespace byteps::transport::rdma::fake
