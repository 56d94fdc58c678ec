#include "transport/rdma/connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/scoped_flag.h"

namespace byteps::transport::rdma {
namespace {

// Limit per turn, so that other connections get their share.
constexpr int kPollsPerTurn = 16;
constexpr size_t kCompletionsPerPoll = 32;
// Longer waits count as this much, so that the mean falls soon when waits become shorter.
constexpr TimeUs kLongWaitUs = 1'000;

Status closed_by_other(const std::string& peer) { return unavailable(peer + ": closed by the other end"); }

}  // namespace

RdmaConnection::RdmaConnection(std::unique_ptr<Connection> tcp, const ConnectionOptions& options)
    : loop_(tcp->loop()),
      options_(options),
      tcp_(std::move(tcp)),
      peer_("rdma" + tcp_->peer().substr(tcp_->peer().find(' '))),
      mean_wait_us_(kLongWaitUs) {}

RdmaConnection::~RdmaConnection() {
  BPS_CHECK(!in_callback_) << "a connection is destroyed inside a callback of its own";
  close();
}

void RdmaConnection::start(Receiver* receiver) {
  BPS_CHECK(!receiver_) << "start() was called twice";
  receiver_ = receiver;
  if (frame_receiver_) frame_receiver_->start(receiver);
  if (!closed_ || unreported_) request_turn();
}

void RdmaConnection::send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) {
  if (error_.is_ok() && !closing_wait_) {
    RemoteMemory answer_to;
    if (payload.returns_lease != kNoLease) answer_to = frame_receiver_->return_lease(payload.returns_lease);
    sender_->send(head, payload, answer_to, std::move(on_sent));
    request_turn();  // frames of one pass are posted together
  } else if (on_sent) {
    Status why = error_.is_ok() ? aborted(peer_ + ": closing") : error_;
    loop_.post([on_sent = std::move(on_sent), why = std::move(why)]() mutable { on_sent(why); });
  }
}

void RdmaConnection::return_lease(LeaseId lease) {
  if (lease == kNoLease || !error_.is_ok()) return;
  frame_receiver_->return_lease(lease);
  sender_->send_control({.type = RecordType::kGiveBack, .returns_lease = lease});
  request_turn();
}

void RdmaConnection::close_when_sent(GracePeriod grace_period) {
  if (closed_ || closing_wait_) return;
  sender_->send_end();
  closing_wait_.emplace(grace_period, now_us());
  request_turn();
  deadline_ = loop_.run_at(now_us(), [this] { continue_closing(); });
}

void RdmaConnection::continue_closing() {
  const bool outstanding = !sender_->ended() || !sender_->all_written();
  const auto next_us = closing_wait_->look(completions_, outstanding, now_us());
  if (!next_us) return end(Status::ok());
  deadline_ = loop_.run_at(*next_us, [this] { continue_closing(); });
}

void RdmaConnection::close() {
  shut(aborted(peer_ + ": closed by this end"), false);
  unreported_.reset();
  loop_.cancel_turn(this);
}

// ---- Work ----

void RdmaConnection::on_completions() {
  armed_ = false;
  request_turn();
}

void RdmaConnection::on_nic_gone(const Status& why) {
  if (!closed_) end(why.with_context(peer_));
}

void RdmaConnection::on_turn() {
  turn_requested_ = false;
  if (unreported_ && receiver_) return report(*std::exchange(unreported_, std::nullopt));
  if (closed_) return;
  const ScopedFlag in_callback(in_callback_);
  const Status status = work();
  if (closed_) return;
  if (status.is_ok()) return end_if_over();
  // A peer that has received the end may close before later writes arrive, so errors after that are
  // not failures.
  sender_->end_is_written() ? end_as_asked() : end(status);
}

// Works until there is nothing to do or other connections should get their turn.
Status RdmaConnection::work() {
  const ScopedFlag working(working_);
  for (int i = 0; i < kPollsPerTurn; ++i) {
    const auto count = poll();
    if (closed_) return Status::ok();
    // Comes before returning an error, as the peer's last records may explain it.
    BPS_RETURN_IF_ERROR(frame_receiver_->process());
    if (!count) return count.status();
    if (!queue_pair_) return Status::ok();  // also if closed
    asked_again_ = false;
    if (is_draining_) {
      if (arrivals_posted_ == 0) {
        BPS_RETURN_IF_ERROR(replace_queue_pair());
        if (!queue_pair_) return Status::ok();
        continue;
      }
    } else {
      BPS_RETURN_IF_ERROR(send_and_receive());
      if (closed_) return Status::ok();
    }
    if (*count == kCompletionsPerPoll || asked_again_) continue;
    if (should_spin()) break;
    if (armed_) return Status::ok();
    BPS_RETURN_IF_ERROR(queue_pair_->arm().with_context(peer_));
    armed_ = true;  // poll once more for completions that came before arm()
  }
  working_ = false;
  request_turn();
  return Status::ok();
}

Status RdmaConnection::send_and_receive() {
  if (arrivals_owed_ >= kArrivalsPerPost) {
    arrivals_posted_ += arrivals_owed_;
    BPS_RETURN_IF_ERROR(queue_pair_->post_arrivals(std::exchange(arrivals_owed_, 0)).with_context(peer_));
  }
  BPS_RETURN_IF_ERROR(sender_->pump(frame_receiver_->consumed()));
  if (closed_) return Status::ok();
  return sender_->report_consumed(frame_receiver_->consumed());
}

Result<size_t> RdmaConnection::poll() {
  if (!queue_pair_) return size_t{0};
  std::array<Completion, kCompletionsPerPoll> completions;
  const auto count = queue_pair_->poll(completions);
  if (!count) return count.status().with_context(peer_);
  for (size_t i = 0; i < *count && !closed_; ++i) BPS_RETURN_IF_ERROR(on_completion(completions[i]));
  if (*count > 0 && idle_since_us_ > 0) {
    const TimeUs waited_us = std::min(now_us() - std::exchange(idle_since_us_, 0), kLongWaitUs);
    mean_wait_us_ += (waited_us - mean_wait_us_) / 8;
  }
  return *count;
}

Status RdmaConnection::on_completion(const Completion& completion) {
  ++completions_;
  if (!completion.ok()) return on_failure(completion);
  if (completion.kind == Completion::Kind::kWritten) {
    in_vain_since_us_ = 0;
    sender_->on_written(completion.id);
    return Status::ok();
  }
  ++arrivals_owed_;
  --arrivals_posted_;
  ++arrivals_;
  const bool is_count = completion.immediate & kConsumedFlag;
  // A renewal may go on with records.
  if (!introduced_ && !is_draining_ && (is_count || attempt_ > 0)) BPS_RETURN_IF_ERROR(on_first_message());
  if (!is_count) return frame_receiver_->on_record(completion.immediate);
  return sender_->on_consumed(completion.immediate & kCountMask).with_context(peer_);
}

Status RdmaConnection::on_failure(const Completion& completion) {
  if (completion.id == 0) --arrivals_posted_;
  if (is_draining_) return Status::ok();
  BPS_RETURN_IF_ERROR(nic_loop_->state().with_context(peer_));
  const std::string reason = queue_pair_->describe(completion.status);
  if (!introduced_ && attempt_ == 0) {
    return unavailable(peer_ + ": " + kNoRdmaPath + " (" + reason + ")");
  }
  const Status why = unavailable(peer_ + ": RDMA failed: " + reason);
  const bool may_renew = options_.renewal_limit_us > 0 && queue_pair_->is_path_failure(completion.status) &&
                         !sender_->end_is_written();
  if (!may_renew) return why;
  break_off(why);
  return Status::ok();
}

// For short waits, sleeping and waking up would take longer than polling. Polling for long would
// keep a core busy.
bool RdmaConnection::should_spin() {
  const TimeUs now = now_us();
  if (idle_since_us_ == 0) idle_since_us_ = now;
  return mean_wait_us_ <= options_.spin_us && now - idle_since_us_ < options_.spin_us && !tcp_ended_;
}

void RdmaConnection::request_turn() {
  if (closed_ && !unreported_) return;
  asked_again_ = true;
  if (working_ || std::exchange(turn_requested_, true)) return;  // work() continues by itself
  loop_.request_turn(this);
}

// ---- End ----

void RdmaConnection::end_if_over() {
  const bool has_said_all = closing_wait_ && sender_->ended();
  if (frame_receiver_->ended() && !has_said_all) return end(closed_by_other(peer_));
  const bool both_have = frame_receiver_->ended() && sender_->all_written();
  if (!both_have && (!tcp_ended_ || turn_requested_)) return;
  if (has_said_all) return end_as_asked();
  if (receiver_) return end(broken_.is_ok() ? closed_by_other(peer_) : broken_);
  if (!queue_pair_) return;  // records received before start() are kept for it
  error_ = closed_by_other(peer_);
  queue_pair_.reset();
  sender_->stop(error_);
}

// Everything queued before close_when_sent() has been sent.
void RdmaConnection::end_as_asked() {
  shut(aborted(peer_ + ": closed"), true);
  report(Status::ok());
}

void RdmaConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted(peer_ + ": closed before this was sent") : why, false);
  report(why);
}

void RdmaConnection::report(const Status& why) {
  const ScopedFlag in_callback(in_callback_);
  if (on_ready_) {
    std::exchange(on_ready_, nullptr)(why);
  } else if (receiver_) {
    receiver_->on_closed(*this, why);
  } else {
    unreported_ = why;
  }
}

void RdmaConnection::shut(const Status& why, bool written_is_sent) {
  if (std::exchange(closed_, true)) return;
  loop_.cancel_turn(this);
  turn_requested_ = false;
  loop_.cancel(deadline_);
  loop_.cancel(renewal_limit_);
  loop_.cancel(next_attempt_);
  error_ = why;
  if (frame_receiver_) frame_receiver_->stop();
  queue_pair_.reset();  // the NIC does not access this connection's memory any more
  if (nic_loop_) nic_loop_->remove(this);
  tcp_->close();
  if (sender_) sender_->fail(why, written_is_sent);
}

}  // namespace byteps::transport::rdma
