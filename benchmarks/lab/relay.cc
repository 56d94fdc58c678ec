// The switch of a lab with a bad network: carries Ethernet frames between interfaces and loses,
// delays, reorders and duplicates them on the way. `relay.py` starts it and speaks with it.
//
//   relay INTERFACE...      interface i, at most 255, leads to host i, whose MAC address is
//                           02:00:00:00:00:i
//
// Each path, from one host to another, has its own impairments. Commands come on standard input, a
// line each, and each is answered by one line on standard output, "ok ..." or "error ...":
//
//   impair FROM TO LOSS DUPLICATE REORDER DELAY_US JITTER_US     FROM, TO: a number, or * for all;
//                           the first three are probabilities from 0 to 1
//   cut FROM TO             carries nothing from now on
//   mend FROM TO            undoes cut
//   counts FROM TO          answers "ok CARRIED LOST DUPLICATED REORDERED", in frames
//   overruns                answers "ok N": frames that the kernel dropped because this program
//                           was late; they are not in any other count
//
// The program ends when its standard input does. Frames to other addresses are dropped. The sequence
// of a path's losses depends only on its seed (FROM, TO), not on time.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <queue>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Nanoseconds = int64_t;

constexpr size_t kFrameBytes = 9216 + 64;  // jumbo frames included
constexpr size_t kBatch = 64;
constexpr int kSocketBufferBytes = 64 << 20;    // more than any queue of the lab's links
constexpr Nanoseconds kHeldBackNs = 1'000'000;  // by which a reordered frame is late

Nanoseconds now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

struct Frame {
  std::array<unsigned char, kFrameBytes> bytes;
  size_t length = 0;
};

// A frame that waits for its time.
struct Waiting {
  Nanoseconds due;
  uint64_t sequence;  // frames due at the same time keep their order
  size_t to;
  std::shared_ptr<const Frame> frame;

  bool operator>(const Waiting& other) const {
    return due != other.due ? due > other.due : sequence > other.sequence;
  }
};

struct Path {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;
  Nanoseconds delay = 0;
  Nanoseconds jitter = 0;
  bool cut = false;

  Nanoseconds last_due = 0;  // jitter keeps the order: no frame overtakes the one before
  uint64_t carried = 0, lost = 0, duplicated = 0, reordered = 0;
  std::minstd_rand random;

  bool happens(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random) < probability;
  }
};

int open_interface(const std::string& name) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  for (const int option : {SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    if (setsockopt(fd, SOL_SOCKET, option, &kSocketBufferBytes, sizeof kSocketBufferBytes) != 0) {
      fail("socket buffers");
    }
  }
  const int one = 1;  // what this socket sends must not come back
  if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0) fail("ignore outgoing");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = __builtin_bswap16(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  if (address.sll_ifindex == 0) fail(name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind to " + name);
  return fd;
}

class Relay {
 public:
  explicit Relay(const std::vector<std::string>& interfaces) : paths_(interfaces.size()) {
    for (size_t from = 0; from < interfaces.size(); ++from) {
      fds_.push_back(open_interface(interfaces[from]));
      outgoing_.emplace_back();
      paths_[from].resize(interfaces.size());
      for (size_t to = 0; to < interfaces.size(); ++to) {
        paths_[from][to].random.seed(static_cast<unsigned>(1 + from * 1000 + to));
      }
    }
  }

  void run() {
    std::vector<pollfd> watched;
    watched.push_back({STDIN_FILENO, POLLIN, 0});
    for (const int fd : fds_) watched.push_back({fd, POLLIN, 0});
    for (;;) {
      const Nanoseconds wait =
          waiting_.empty() ? -1 : std::max<Nanoseconds>(0, waiting_.top().due - now_ns());
      const timespec limit{wait / 1'000'000'000, wait % 1'000'000'000};
      if (ppoll(watched.data(), watched.size(), wait < 0 ? nullptr : &limit, nullptr) < 0 && errno != EINTR) {
        fail("ppoll");
      }
      if (watched[0].revents != 0 && !read_commands()) return;
      for (size_t i = 0; i < fds_.size(); ++i) {
        if (watched[i + 1].revents != 0) receive(i);
      }
      release();
      for (size_t to = 0; to < fds_.size(); ++to) flush(to);
    }
  }

 private:
  void receive(size_t from) {
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> vectors;
    std::array<std::shared_ptr<Frame>, kBatch> frames;
    for (size_t i = 0; i < kBatch; ++i) {
      frames[i] = take_frame();
      vectors[i] = {frames[i]->bytes.data(), kFrameBytes};
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int count = recvmmsg(fds_[from], messages.data(), kBatch, 0, nullptr);
    const Nanoseconds now = now_ns();
    for (size_t i = 0; i < kBatch; ++i) {
      if (static_cast<int>(i) < count) {
        frames[i]->length = messages[i].msg_len;
        carry(from, std::move(frames[i]), now);
      } else {
        spare_.push_back(std::move(frames[i]));
      }
    }
  }

  void carry(size_t from, std::shared_ptr<Frame> frame, Nanoseconds now) {
    const auto& bytes = frame->bytes;
    const size_t to = bytes[5];
    if (frame->length < ETH_HLEN || bytes[0] != 2 || (bytes[1] | bytes[2] | bytes[3] | bytes[4]) != 0 ||
        to >= fds_.size() || to == from) {
      spare_.push_back(std::move(frame));
      return;
    }
    Path& path = paths_[from][to];
    if (path.cut || path.happens(path.loss)) {
      ++path.lost;
      spare_.push_back(std::move(frame));
      return;
    }
    Nanoseconds due = now + path.delay;
    if (path.jitter > 0) {
      due += static_cast<Nanoseconds>(std::uniform_real_distribution<>(0, 1)(path.random) *
                                      static_cast<double>(path.jitter));
    }
    path.last_due = due = std::max(due, path.last_due);
    if (path.happens(path.reorder)) {
      ++path.reordered;
      due += kHeldBackNs;
    }
    const bool twice = path.happens(path.duplicate);
    path.carried += 1;
    path.duplicated += twice ? 1 : 0;
    for (int copy = 0; copy <= (twice ? 1 : 0); ++copy) {
      waiting_.push({due, ++sequence_, to, frame});
    }
  }

  void release() {
    const Nanoseconds now = now_ns();
    while (!waiting_.empty() && waiting_.top().due <= now) {
      const size_t to = waiting_.top().to;
      outgoing_[to].push_back(waiting_.top().frame);
      waiting_.pop();
      if (outgoing_[to].size() == kBatch) flush(to);
    }
  }

  // A frame that the link's queue has no room for is lost there, as in a switch.
  void flush(size_t to) {
    auto& frames = outgoing_[to];
    if (frames.empty()) return;
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> vectors;
    for (size_t i = 0; i < frames.size(); ++i) {
      vectors[i] = {const_cast<unsigned char*>(frames[i]->bytes.data()), frames[i]->length};
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    for (size_t sent = 0; sent < frames.size();) {
      const int count = sendmmsg(fds_[to], &messages[sent], static_cast<unsigned>(frames.size() - sent), 0);
      sent += count > 0 ? static_cast<size_t>(count) : 1;
    }
    for (auto& frame : frames) {
      if (frame.use_count() == 1) spare_.push_back(std::const_pointer_cast<Frame>(std::move(frame)));
    }
    frames.clear();
  }

  std::shared_ptr<Frame> take_frame() {
    if (spare_.empty()) return std::make_shared<Frame>();
    auto frame = std::move(spare_.back());
    spare_.pop_back();
    return frame;
  }

  bool read_commands() {
    std::array<char, 4096> bytes;
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count <= 0) return false;
    commands_.append(bytes.data(), static_cast<size_t>(count));
    for (size_t end; (end = commands_.find('\n')) != std::string::npos; commands_.erase(0, end + 1)) {
      std::cout << answer(commands_.substr(0, end)) << std::endl;
    }
    return true;
  }

  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, from, to;
    words >> command;
    if (command == "overruns") return "ok " + std::to_string(overruns());
    words >> from >> to;
    std::vector<Path*> chosen;
    for (size_t i = 0; i < paths_.size(); ++i) {
      for (size_t j = 0; j < paths_.size(); ++j) {
        if (i != j && (from == "*" || from == std::to_string(i)) && (to == "*" || to == std::to_string(j))) {
          chosen.push_back(&paths_[i][j]);
        }
      }
    }
    if (chosen.empty()) return "error no such path: " + line;
    if (command == "impair") {
      double loss = 0, duplicate = 0, reorder = 0, delay_us = 0, jitter_us = 0;
      if (!(words >> loss >> duplicate >> reorder >> delay_us >> jitter_us))
        return "error bad numbers: " + line;
      for (Path* path : chosen) {
        path->loss = loss;
        path->duplicate = duplicate;
        path->reorder = reorder;
        path->delay = std::llround(delay_us * 1e3);
        path->jitter = std::llround(jitter_us * 1e3);
      }
      return "ok";
    }
    if (command == "cut" || command == "mend") {
      for (Path* path : chosen) path->cut = command == "cut";
      return "ok";
    }
    if (command == "counts") {
      uint64_t carried = 0, lost = 0, duplicated = 0, reordered = 0;
      for (const Path* path : chosen) {
        carried += path->carried;
        lost += path->lost;
        duplicated += path->duplicated;
        reordered += path->reordered;
      }
      std::ostringstream result;
      result << "ok " << carried << ' ' << lost << ' ' << duplicated << ' ' << reordered;
      return result.str();
    }
    return "error unknown command: " + line;
  }

  uint64_t overruns() {
    for (const int fd : fds_) {
      tpacket_stats statistics{};
      socklen_t length = sizeof statistics;
      if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0) {
        overruns_ += statistics.tp_drops;  // reading sets the kernel's count to zero
      }
    }
    return overruns_;
  }

  std::vector<int> fds_;
  std::vector<std::vector<Path>> paths_;                             // [from][to]
  std::vector<std::vector<std::shared_ptr<const Frame>>> outgoing_;  // due, by interface
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::vector<std::shared_ptr<Frame>> spare_;
  std::string commands_;
  uint64_t sequence_ = 0;
  uint64_t overruns_ = 0;
};

}  // namespace

int main(int count, char** words) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
  Relay relay(std::vector<std::string>(words + 1, words + count));
  std::cout << "ready" << std::endl;
  relay.run();
}
