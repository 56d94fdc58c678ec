#include "transport/stream/rate_limit.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "transport/stream/tcp_statistics.h"

namespace byteps::transport {
namespace {

constexpr const char* kReno = "reno";  // every process may choose it

constexpr uint64_t kLookEveryBytes = 2 << 20;
constexpr double kRememberedBytes = 16 << 20;

// Where more is lost, timeouts decide, which the formula of suits_reno does not know.
constexpr double kFewLosses = 0.02;
// The window that reno keeps up must be larger than what the rate needs by this factor.
constexpr double kEasily = 8;

// Bursts are half a window, at most 64 KiB; a smaller window grows for as many bytes as the second.
constexpr uint64_t kLargeWindowBytes = 96 << 10;
constexpr uint64_t kGrowthBytes = 256 << 10;

// The limit of BBR, as a multiple of the wanted rate.
constexpr double kBbrHeadroom = 1.02;

std::string congestion_control(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof name;
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 ? name : "";
}

bool set_congestion_control(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

void say_once(const std::string& own) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  BPS_LOG(kInfo) << "connections with a limited rate use reno instead of " << own
                 << " while their path loses so little that it reaches the limit: " << own
                 << " slows down under a limit";
}

}  // namespace

bool suits_reno(const PathQuality& path, uint64_t bytes_per_s) {
  if (path.min_rtt_us == kNever || path.loss > kFewLosses) return false;
  const double packets = static_cast<double>(bytes_per_s) * static_cast<double>(path.min_rtt_us) / 1e6 /
                         static_cast<double>(std::max<uint32_t>(path.packet_bytes, 1));
  return packets * kEasily * std::sqrt(path.loss) <= 1.22;
}

void LossMeter::look(uint64_t sent_bytes, uint64_t resent_bytes) {
  sent_ += static_cast<double>(sent_bytes - seen_sent_);
  resent_ += static_cast<double>(resent_bytes - seen_resent_);
  seen_sent_ = sent_bytes;
  seen_resent_ = resent_bytes;
  if (sent_ <= kRememberedBytes) return;
  resent_ *= kRememberedBytes / sent_;
  sent_ = kRememberedBytes;
}

double LossMeter::loss(uint32_t packet_bytes) const {
  if (seen_sent_ == 0) return 1;
  return std::min(1.0, resent_ / sent_ + static_cast<double>(packet_bytes) / static_cast<double>(seen_sent_));
}

void RateLimit::set(int fd, uint64_t bytes_per_s) {
  bytes_per_s_ = bytes_per_s;
  if (bytes_per_s == 0) {
    use_reno(fd, false);
    grows_ = false;
  }
  choose_congestion_control(fd);
  apply(fd);
}

void RateLimit::apply(int fd) {
  uint64_t limit = ~uint64_t{0};
  if (bytes_per_s_ > 0) {
    const double factor = is_bbr() && !suits_reno_ ? kBbrHeadroom : 1;
    limit = static_cast<uint64_t>(factor * static_cast<double>(bytes_per_s_));
  }
  if (limit == std::exchange(limit_, limit)) return;
  setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit);
}

void RateLimit::on_written(int fd, uint64_t bytes) {
  unlooked_bytes_ += bytes;
  if (bytes_per_s_ == 0 || unlooked_bytes_ < (grows_ ? kGrowthBytes : kLookEveryBytes)) return;
  choose_congestion_control(fd);
  apply(fd);
}

void RateLimit::choose_congestion_control(int fd) {
  if (bytes_per_s_ == 0) return;
  if (own_.empty()) own_ = congestion_control(fd);
  if (!is_bbr()) return;
  unlooked_bytes_ = 0;
  const PathQuality path = look(fd);
  suits_reno_ = suits_reno(path, bytes_per_s_);
  // BBR's window does not become large at every rate, so one attempt has to do.
  grows_ = suits_reno_ && !grows_ && path.window_bytes < kLargeWindowBytes;
  use_reno(fd, suits_reno_ && !grows_);
}

void RateLimit::use_reno(int fd, bool wanted) {
  if (wanted == uses_reno_ || !set_congestion_control(fd, wanted ? kReno : own_)) return;
  uses_reno_ = wanted;
  if (wanted) say_once(own_);
}

// Of an unknown path nothing is assumed that would suit reno.
PathQuality RateLimit::look(int fd) {
  const auto statistics = tcp_statistics(fd);
  if (!statistics) return {.min_rtt_us = kNever};
  losses_.look(statistics->sent_bytes, statistics->resent_bytes);
  return {.min_rtt_us = statistics->min_rtt_us,
          .loss = losses_.loss(statistics->packet_bytes),
          .packet_bytes = statistics->packet_bytes,
          .window_bytes = statistics->window_bytes};
}

}  // namespace byteps::transport
