#include "transport/resume/resuming_connection.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace byteps::transport {

using Kind = ResumeHead::Kind;

namespace {

constexpr size_t kMostEnded = 4096;
// Time for the first frame of a connection that has been accepted and is to be closed.
constexpr TimeUs kFirstFrameUs = 1'000'000;

}  // namespace

void SessionTable::end(const SessionId& session) {
  sessions[session] = nullptr;
  ended.push_back(session);
  if (ended.size() <= kMostEnded) return;
  sessions.erase(ended.front());
  ended.pop_front();
}

ResumingConnection::ResumingConnection(std::unique_ptr<Connection> carrier, SessionId session,
                                       Connector connector, TimeUs limit_us)
    : loop_(carrier->loop()),
      peer_(carrier->peer()),
      is_local_(carrier->is_local()),
      limit_us_(limit_us),
      session_(session),
      connector_(std::move(connector)),
      carrier_(std::make_unique<Carrier>(this, std::move(carrier))) {
  transmit({.kind = Kind::kOpen, .session = session_, .oldest = 0});
  resume();
}

ResumingConnection::ResumingConnection(std::unique_ptr<Connection> carrier,
                                       std::shared_ptr<SessionTable> table, TimeUs limit_us)
    : loop_(carrier->loop()),
      peer_(carrier->peer()),
      is_local_(carrier->is_local()),
      limit_us_(limit_us),
      table_(std::move(table)),
      carrier_(std::make_unique<Carrier>(this, std::move(carrier))) {}

ResumingConnection::~ResumingConnection() {
  if (carrier_) carrier_->connection->close();
  carrier_.reset();  // no callback of it is running, because none of this connection is
  close();
}

void ResumingConnection::start(Receiver* receiver) {
  receiver_ = receiver;
  if (carrier_) carrier_->connection->start(carrier_.get());
}

void ResumingConnection::send(Bytes head, const Payload& payload,
                              UniqueFunction<void(const Status&)> on_sent) {
  if (closed_ || closing_) {
    if (!on_sent) return;
    return loop_.post(
        [on_sent = std::move(on_sent), why = aborted(peer_ + ": closing")]() mutable { on_sent(why); });
  }
  Frame& frame = frames_.emplace_back();
  frame.head.resize(kResumeHeadBytes);
  frame.head.insert(frame.head.end(), head.begin(), head.end());
  frame.payload = payload;
  frame.on_sent = std::move(on_sent);
  if (is_ready_) transmit(oldest_ + frames_.size() - 1);
}

void ResumingConnection::transmit(uint64_t number) {
  Frame& frame = frames_[number - oldest_];
  const auto head = encode({.kind = Kind::kData, .received = static_cast<uint32_t>(received_)});
  std::copy_n(head.begin(), kResumeHeadBytes, frame.head.begin());
  carrier_->connection->send(frame.head, frame.payload,
                             [this, number, alive = std::weak_ptr(alive_)](const Status& status) {
                               if (alive.expired()) return;
                               if (status.is_ok()) return on_transmitted(number);
                               if (receiver_ == nullptr) fail_frames(status);
                             });
}

void ResumingConnection::transmit(const ResumeHead& head) {
  carrier_->connection->send(Bytes(encode(head)).first(head_bytes(head.kind)), {}, nullptr);
}

// A frame that is sent again has been reported before.
void ResumingConnection::on_transmitted(uint64_t number) {
  if (number < oldest_ || number - oldest_ >= frames_.size()) return;
  auto& on_sent = frames_[number - oldest_].on_sent;
  if (on_sent) std::exchange(on_sent, nullptr)(Status::ok());
}

Status ResumingConnection::confirm(uint32_t received) {
  const uint32_t count = received - static_cast<uint32_t>(oldest_);
  if (count > frames_.size()) {
    return data_loss(peer_ + ": has received frame " + std::to_string(received) + " of " +
                     std::to_string(oldest_ + frames_.size()));
  }
  for (uint32_t i = 0; i < count && !frames_.empty(); ++i) {  // on_sent may close the connection
    auto on_sent = std::move(frames_.front().on_sent);
    frames_.pop_front();
    ++oldest_;
    if (on_sent) on_sent(Status::ok());
  }
  return Status::ok();
}

Result<ReceiveBuffer> ResumingConnection::on_head(const Arrival& arrival) {
  const Result<ResumeHead> head = decode_resume_head(arrival.head);
  if (!head) return head.status();
  const bool is_open = is_connecting_end() || is_known_;
  if (head->kind != Kind::kData || !is_open) return data_loss(peer_ + ": expected no payload yet");
  Arrival inner = arrival;
  inner.head = arrival.head.subspan(kResumeHeadBytes);
  return receiver_->on_head(*this, inner);
}

Status ResumingConnection::on_frame(const Arrival& arrival, Bytes payload) {
  const Result<ResumeHead> head = decode_resume_head(arrival.head);
  if (!head) return head.status();
  if (head->kind == Kind::kOpen) return on_open(*head);
  if (!is_connecting_end() && !is_known_) return data_loss(peer_ + ": did not open the connection");
  if (head->kind == Kind::kUnknown && is_connecting_end()) {
    end(broken_.is_ok() ? data_loss(peer_ + ": refuses the connection") : broken_);
    return Status::ok();
  }
  BPS_RETURN_IF_ERROR(confirm(head->received));
  if (head->kind == Kind::kResumed) {
    if (is_connecting_end() && !is_ready_) resume();
    return Status::ok();
  }
  if (head->kind != Kind::kData) return data_loss(peer_ + ": sent a frame of the other end");
  ++received_;
  Arrival inner = arrival;
  inner.head = arrival.head.subspan(kResumeHeadBytes);
  return receiver_->on_frame(*this, inner, payload);
}

// Whoever has never received anything, and has all that it ever sent, may begin anew.
Status ResumingConnection::on_open(const ResumeHead& open) {
  if (is_connecting_end() || is_known_) return data_loss(peer_ + ": opened the connection twice");
  const auto known = table_->sessions.find(open.session);
  const bool is_new = known == table_->sessions.end();
  if (!is_new && known->second != nullptr) {
    ResumingConnection* const session = known->second;
    const uint32_t received = open.received;
    session->use(std::move(carrier_));
    Status status = session->confirm(received);
    if (status.is_ok()) {
      session->transmit({.kind = Kind::kResumed, .received = static_cast<uint32_t>(session->received_)});
      session->resume();
    }
    end(aborted(peer_ + ": goes on with an earlier connection"));
    return status;
  }
  if (!is_new || open.oldest != 0 || open.received != 0) {
    transmit({.kind = Kind::kUnknown});
    return Status::ok();
  }
  session_ = open.session;
  is_known_ = true;
  table_->sessions.emplace(session_, this);
  transmit({.kind = Kind::kResumed});
  resume();
  return Status::ok();
}

void ResumingConnection::use(std::unique_ptr<Carrier> carrier) {
  drop_carrier();
  carrier_ = std::move(carrier);
  carrier_->owner = this;
  earlier_ += latest_;
  latest_ = {};
  if (pace_) carrier_->connection->pace(*pace_);
  if (silence_us_ > 0) carrier_->connection->limit_silence(silence_us_);
}

void ResumingConnection::resume() {
  is_ready_ = true;
  if (limit_timer_ != 0) loop_.cancel(std::exchange(limit_timer_, 0));
  if (!broken_.is_ok()) {
    BPS_LOG(kWarning) << broken_.message() << "; connected again after "
                      << (loop_.now_us() - broken_since_us_) / 1000 << " ms, nothing is lost";
    broken_ = Status::ok();
  }
  for (uint64_t i = 0; i < frames_.size(); ++i) transmit(oldest_ + i);
  if (closing_) carrier_->connection->close_when_sent(*closing_);
}

void ResumingConnection::on_carrier_closed(const Status& why, bool was_reset) {
  const bool has_all = closing_ && frames_.empty();
  const bool may_resume = was_reset && !has_all && !has_failed_ && (is_connecting_end() || is_known_);
  drop_carrier();
  if (!may_resume) return end(why);
  if (broken_.is_ok()) {
    broken_ = why.is_ok() ? unavailable(peer_ + ": reset") : why;
    broken_since_us_ = loop_.now_us();
    limit_interruption();
    if (receiver_ != nullptr) receiver_->on_interrupted(*this);
  }
  if (is_connecting_end() && !closed_) reconnect();
}

void ResumingConnection::limit_interruption() {
  if (limit_timer_ != 0) loop_.cancel(limit_timer_);
  // The connecting end knows sooner whether it is in vain.
  TimeUs until_us = broken_since_us_ + (is_connecting_end() ? limit_us_ : limit_us_ + limit_us_ / 4);
  if (closing_) {
    const TimeUs stalled_us = later(broken_since_us_, closing_->stall_us);
    until_us = std::min(until_us, std::max(closing_->deadline_us, stalled_us));
  }
  limit_timer_ = loop_.run_at(until_us, [this] {
    limit_timer_ = 0;
    give_up("not connected again within " + std::to_string((loop_.now_us() - broken_since_us_) / 1000) +
            " ms");
  });
}

void ResumingConnection::give_up(const std::string& why) {
  end(closing_ ? Status::ok() : Status(broken_.code(), broken_.message() + "; " + why));
}

void ResumingConnection::reconnect() {
  const auto limits = ConnectLimits::while_it_lives(broken_since_us_, limit_us_);
  connector_(limits, [this, alive = std::weak_ptr(alive_)](auto connection) {
    if (alive.expired() || closed_) return;
    if (!connection) return give_up(connection.status().message());
    use(std::make_unique<Carrier>(this, std::move(*connection)));
    carrier_->connection->start(carrier_.get());
    transmit({.kind = Kind::kOpen,
              .received = static_cast<uint32_t>(received_),
              .session = session_,
              .oldest = oldest_});
  });
}

void ResumingConnection::pace(uint64_t bytes_per_s) {
  pace_ = bytes_per_s;
  if (carrier_) carrier_->connection->pace(bytes_per_s);
}

std::optional<SentTraffic> ResumingConnection::sent_traffic() {
  if (carrier_) {
    const auto now = carrier_->connection->sent_traffic();
    if (!now) return std::nullopt;
    latest_ = *now;
  }
  SentTraffic sum = earlier_;
  return sum += latest_;
}

void ResumingConnection::limit_silence(TimeUs limit_us) {
  silence_us_ = limit_us;
  if (carrier_) carrier_->connection->limit_silence(limit_us);
}

void ResumingConnection::close_when_sent(GracePeriod grace_period) {
  if (closed_ || closing_) return;
  closing_ = grace_period;
  if (is_ready_) return carrier_->connection->close_when_sent(grace_period);
  if (is_interrupted()) return limit_interruption();
  if (!carrier_) return;
  // Its first frame may be on its way, and say that it goes on with a connection that was reset.
  const TimeUs until_us = std::min(loop_.now_us() + kFirstFrameUs, grace_period.deadline_us);
  limit_timer_ = loop_.run_at(until_us, [this] {
    limit_timer_ = 0;
    if (carrier_) carrier_->connection->close_when_sent(*closing_);
  });
}

void ResumingConnection::close() {
  drop_carrier();
  shut(aborted(peer_ + ": closed by this end"));
}

// May be called from inside a callback of the carrier, which is destroyed after that.
void ResumingConnection::drop_carrier() {
  is_ready_ = false;
  if (!carrier_) return;
  carrier_->connection->close();
  loop_.post([doomed = std::move(carrier_)] {});
}

void ResumingConnection::end(const Status& why) {
  if (closed_) return;
  drop_carrier();
  shut(why.is_ok() ? aborted(peer_ + ": closed before this was sent") : why);
  if (receiver_ != nullptr) receiver_->on_closed(*this, why);
}

void ResumingConnection::shut(const Status& why) {
  if (std::exchange(closed_, true)) return;
  if (limit_timer_ != 0) loop_.cancel(std::exchange(limit_timer_, 0));
  if (is_known_) table_->end(session_);
  is_known_ = false;
  fail_frames(why);
}

// Before start(), nobody could be told that the connection has ended.
void ResumingConnection::fail_frames(const Status& why) {
  has_failed_ = true;
  for (Frame& frame : std::exchange(frames_, {})) {
    if (frame.on_sent) frame.on_sent(why);
  }
}

}  // namespace byteps::transport
