#include "protocol/nic_probe.h"

#include <algorithm>
#include <string>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

constexpr uint32_t kLeastFrameBytes = 16 << 10;
// The frames under way at the beginning and at the end of a measurement are its error.
constexpr uint32_t kMostFrameBytes = 32 << 10;
static_assert(kMostFrameBytes <= kMaxProbeFrameBytes);
constexpr uint64_t kFramesOfWindow = 8;
constexpr uint64_t kLeastWindowBytes = 2 * kLeastFrameBytes;
constexpr double kGrowth = 1.25;  // a round brought a higher rate

constexpr TimeUs kWarmUpUs = 50'000;
constexpr TimeUs kWantedUs = 150'000;
constexpr TimeUs kWantedRoundTrips = 6;
constexpr uint32_t kWantedAnswers = 16;
// For cards so slow that few answers have arrived by then, and for windows that never settle.
constexpr TimeUs kPatienceUs = 600'000;
constexpr TimeUs kPatienceRoundTrips = 24;
constexpr TimeUs kLongestUs = 3'000'000;

}  // namespace

uint32_t ProbeWindow::next_frame(TimeUs now) {
  const auto frame = static_cast<uint32_t>(std::clamp<uint64_t>(
      window_bytes_ / kFramesOfWindow / kPageBytes * kPageBytes, kLeastFrameBytes, kMostFrameBytes));
  if (in_flight_bytes_ >= window_bytes_) return 0;
  in_flight_.push_back({frame, round_, now});
  in_flight_bytes_ += frame;
  return frame;
}

Status ProbeWindow::on_answer(uint64_t bytes, TimeUs now) {
  if (in_flight_.empty() || bytes != in_flight_.front().bytes) {
    return data_loss("probe: expected an answer of " +
                     std::to_string(in_flight_.empty() ? 0 : in_flight_.front().bytes) + " bytes, got " +
                     std::to_string(bytes));
  }
  const Frame frame = in_flight_.front();
  in_flight_.pop_front();
  in_flight_bytes_ -= bytes;
  answered_bytes_ += bytes;
  min_rtt_us_ = std::min(min_rtt_us_, std::max<TimeUs>(now - frame.sent_us, 1));
  if (frame.round == round_) end_round(now);
  return Status::ok();
}

void ProbeWindow::end_round(TimeUs now) {
  if (round_began_us_ != kNever && now > round_began_us_) {
    const double rate = static_cast<double>(answered_bytes_ - answered_before_round_) * 1e6 /
                        static_cast<double>(now - round_began_us_);
    flat_rounds_ = is_full() || rate <= best_bytes_per_s_ * kGrowth ? flat_rounds_ + 1 : 0;
    best_bytes_per_s_ = std::max(best_bytes_per_s_, rate);
    const double path_bytes = best_bytes_per_s_ * static_cast<double>(min_rtt_us_) / 1e6;
    window_bytes_ = std::clamp(is_full() ? static_cast<uint64_t>(2 * path_bytes) : 2 * window_bytes_,
                               kLeastWindowBytes, kMaxProbeWindowBytes - kMaxProbeFrameBytes);
  }
  round_began_us_ = now;
  answered_before_round_ = answered_bytes_;
  ++round_;
}

TimeUs ProbeMeter::patience_us() const {
  return std::min(kPatienceUs + kPatienceRoundTrips * rtt_us_, kLongestUs);
}

void ProbeMeter::on_answer(uint64_t bytes, TimeUs now, bool settled, TimeUs rtt_us) {
  rtt_us_ = rtt_us;
  if (first_us_ == kNever) {
    const bool begins = settled ? now >= start_us_ + kWarmUpUs : now >= start_us_ + patience_us() / 2;
    if (begins) first_us_ = now;
    return;
  }
  last_us_ = now;
  bytes_ += bytes;
  ++count_;
}

bool ProbeMeter::done(TimeUs now) const {
  if (now >= start_us_ + patience_us()) return true;
  return first_us_ != kNever && count_ >= kWantedAnswers &&
         now >= first_us_ + std::max(kWantedUs - kWarmUpUs, kWantedRoundTrips * rtt_us_);
}

TimeUs ProbeMeter::deadline_us() const { return start_us_ + kLongestUs; }

double ProbeMeter::bytes_per_s() const {
  return last_us_ > first_us_ ? static_cast<double>(bytes_) * 1e6 / static_cast<double>(last_us_ - first_us_)
                              : 0;
}

}  // namespace byteps::protocol
