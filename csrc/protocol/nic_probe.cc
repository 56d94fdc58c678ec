#include "protocol/nic_probe.h"

#include <algorithm>
#include <string>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

constexpr uint64_t kFirstWindowBytes = 32 << 10;
constexpr uint32_t kLeastFrameBytes = 16 << 10;
constexpr uint64_t kFramesOfWindow = 4;
constexpr uint64_t kPartUnderWay = 8;

constexpr TimeUs kWarmUpUs = 50'000;
constexpr TimeUs kWantedUs = 150'000;
// Limit for cards so slow that few answers have arrived by then.
constexpr TimeUs kLongestUs = 600'000;
constexpr uint32_t kWantedAnswers = 16;

}  // namespace

uint64_t ProbeWindow::window_bytes() const {
  return std::clamp(answered_bytes_ / kPartUnderWay, kFirstWindowBytes, kMaxProbeWindowBytes);
}

uint32_t ProbeWindow::next_frame() {
  const uint64_t window = window_bytes();
  const auto frame = static_cast<uint32_t>(std::clamp<uint64_t>(
      window / kFramesOfWindow / kPageBytes * kPageBytes, kLeastFrameBytes, kMaxProbeFrameBytes));
  if (asked_bytes_ - answered_bytes_ + frame > window) return 0;
  asked_bytes_ += frame;
  return frame;
}

Status ProbeWindow::on_answer(uint64_t bytes) {
  if (bytes > asked_bytes_ - answered_bytes_) {
    return data_loss("probe: expected an answer of at most " +
                     std::to_string(asked_bytes_ - answered_bytes_) + " bytes, got " + std::to_string(bytes));
  }
  answered_bytes_ += bytes;
  return Status::ok();
}

void ProbeMeter::on_answer(uint64_t bytes, TimeUs now) {
  if (now < start_us_ + kWarmUpUs) return;
  if (first_us_ == kNever) {
    first_us_ = now;
    return;
  }
  last_us_ = now;
  bytes_ += bytes;
  ++count_;
}

bool ProbeMeter::done(TimeUs now) const {
  return now >= deadline_us() || (now >= start_us_ + kWantedUs && count_ >= kWantedAnswers);
}

TimeUs ProbeMeter::deadline_us() const { return start_us_ + kLongestUs; }

double ProbeMeter::bytes_per_s() const {
  return last_us_ > first_us_ ? static_cast<double>(bytes_) * 1e6 / static_cast<double>(last_us_ - first_us_)
                              : 0;
}

}  // namespace byteps::protocol
