// The end of a node: its roles leave the job one after the other, each within a time limit.
#include <deque>
#include <utility>

#include "node/async_node.h"
#include "node/step_sequence.h"

namespace byteps::node {
namespace {

// Longest wait of each step of an orderly leave for peers that do not answer. Data that peers
// receive slowly may take longer, as long as it moves within the job's timeout.
constexpr TimeUs kLeaveUs = 5'000'000;
// The same after a failure: a peer that does not answer then has probably failed.
constexpr TimeUs kLeaveFailedUs = 1'000'000;

using Done = UniqueFunction<void()>;

}  // namespace

TimeUs AsyncNode::leave_deadline_us() const {
  return control_loop_->now_us() + (failure().is_ok() ? kLeaveUs : kLeaveFailedUs);
}

GracePeriod AsyncNode::leave_grace_period() const {
  return {leave_deadline_us(), failure().is_ok() ? static_cast<TimeUs>(roster_.timeout_us) : 0};
}

void AsyncNode::leave(const std::string& cause, const std::string& after) {
  {
    MutexLock lock(mutex_);
    leaving_ = true;
  }
  if (!control_loop_) return left_.reach();
  // On the loop, which may just be creating the roles.
  control_loop_->post([this, cause, after] { leave_roles(cause, after); });
}

// The first step tells the other nodes; connections that this node closes after that are not
// reported, and waits for it fail at once.
void AsyncNode::leave_roles(const std::string& cause, const std::string& after) {
  std::deque<StepSequence::Step> steps;
  if (client_ && !cause.empty()) {
    steps.emplace_back([this, cause](Done done) {
      finished_.when_reached(std::move(done));
      client_->fail_job(cause);
      return control_loop_->now_us() + kLeaveFailedUs;
    });
  } else if (client_ && !after.empty() && !finished_.is_reached()) {
    steps.emplace_back([this, after](Done done) {
      announced_.when_reached(std::move(done));
      client_->send(protocol::Leaving{roster_.self, after});
      return control_loop_->now_us() + kLeaveFailedUs;
    });
  }
  // A result that this rank holds may be the only one, if a server was lost a moment ago.
  const bool may_be_asked = worker_ && !worker_->is_busy() && !held_results_.is_empty();
  if (may_be_asked && cause.empty() && after.empty()) {
    steps.emplace_back([this](Done done) {
      lingered_.when_reached(std::move(done));
      client_->send(protocol::Lingers{roster_.self});
      linger();
      return kNever;
    });
  }
  const auto add = [&](auto leave_role) {
    steps.emplace_back([this, leave_role](Done done) {
      const GracePeriod period = leave_grace_period();
      leave_role(period, std::move(done));
      return period.outer_deadline_us();
    });
  };
  if (worker_) add([this](GracePeriod period, Done done) { worker_->leave(period, std::move(done)); });
  if (parent_link_) {
    add([this](GracePeriod period, Done done) {
      worker::ShardLinks::leave({&parent_link_->links()}, unavailable(self_.describe() + " has left the job"),
                                period, std::move(done));
    });
  }
  if (service_) add([this](GracePeriod period, Done done) { service_->leave(period, std::move(done)); });
  if (client_) {
    steps.emplace_back([this](Done done) {
      const TimeUs until_us = leave_deadline_us();
      client_->leave(until_us, std::move(done));
      return until_us;
    });
  }
  if (scheduler_) {
    steps.emplace_back([this](Done done) {
      const TimeUs until_us = leave_deadline_us();
      const std::string host = worker_ ? self_.describe() + ", which ran the scheduler," : "the scheduler";
      scheduler_->shutdown(host + " has left the job", until_us, std::move(done));
      return until_us;
    });
  }
  if (worker_) {
    steps.emplace_back([this](Done done) {
      if (!standby_) return done(), kNever;
      if (failure().is_ok()) return standby_->leave(std::move(done)), kNever;
      const TimeUs until_us = leave_deadline_us();
      standby_->shutdown(self_.describe() + ", which ran the scheduler, has left the job", until_us,
                         std::move(done));
      return until_us;
    });
  }
  StepSequence::run(*control_loop_, std::move(steps), [this] { left_.reach(); });
}

// Until a loss would have been noticed. After a loss, others may find only then that the successor
// is lost as well.
void AsyncNode::linger() {
  const auto timeout_us = static_cast<TimeUs>(roster_.timeout_us);
  linger_until_us_ = control_loop_->now_us() + timeout_us + timeout_us / 2;
  control_loop_->run_at(linger_until_us_, [this, until_us = linger_until_us_] {
    if (linger_until_us_ == until_us) lingered_.reach();
  });
}

void AsyncNode::stop() {
  if (control_loop_) control_loop_->stop();  // first: it may just be creating the roles
  for (const auto& loop : data_loops_) loop->stop();
  if (device_staging_) device_staging_->stop();
  if (worker_) worker_->handles().close();
}

}  // namespace byteps::node
