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
//   late                    answers "ok N": frames that this program was ready to hand on more than
//                           5 ms after their time
//
// The program ends when its standard input does. Frames to other addresses are dropped. The sequence
// of a path's losses depends only on its seed (FROM, TO), not on time.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
#include <mutex>
#include <queue>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Nanoseconds = int64_t;

constexpr size_t kFrameBytes = 9216 + 64;  // jumbo frames included
constexpr size_t kBatch = 64;
constexpr int kSocketBufferBytes = 64 << 20;    // more than any queue of the lab's links
constexpr Nanoseconds kHeldBackNs = 1'000'000;  // by which a reordered frame is late
constexpr Nanoseconds kLateNs = 5'000'000;
constexpr Nanoseconds kTickNs = 200'000;  // frames that are delayed go on in groups, else time is short

Nanoseconds nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000LL + time.tv_nsec; }

Nanoseconds now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now{};
  clock_gettime(clock, &now);
  return nanoseconds(now);
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
  if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) != 0) fail("times of arrival");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = __builtin_bswap16(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  if (address.sll_ifindex == 0) fail(name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind to " + name);
  return fd;
}

// When the frame has come, by the system's time.
Nanoseconds arrival_ns(msghdr& message) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SO_TIMESTAMPNS) continue;
    timespec time{};
    std::memcpy(&time, CMSG_DATA(each), sizeof time);
    return nanoseconds(time);
  }
  return now_ns(CLOCK_REALTIME);
}

// What the threads share. A path belongs to the thread of its sender.
struct Network {
  std::vector<int> fds;                  // by host
  std::vector<std::vector<Path>> paths;  // [from][to]
};

// A thread that carries the frames of some senders, from the constructor to the end of the process.
class Carrier {
 public:
  Carrier(Network& network, std::vector<size_t> senders)
      : senders_(std::move(senders)), fds_(network.fds), paths_(network.paths), outgoing_(fds_.size()) {
    std::thread([this] { run(); }).detach();
  }

  // While it is held, no frame moves, so paths may be changed.
  std::mutex& mutex() { return mutex_; }
  uint64_t late() const { return late_; }

 private:
  void run() {
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    setpriority(PRIO_PROCESS, 0, -20);  // of this thread; hosts do not slow down a network
    std::vector<pollfd> watched;
    for (const size_t sender : senders_) watched.push_back({fds_[sender], POLLIN, 0});
    for (;;) {
      const Nanoseconds wait =
          waiting_.empty() ? -1 : std::max<Nanoseconds>(0, waiting_.top().due - now_ns());
      const timespec limit{wait / 1'000'000'000, wait % 1'000'000'000};
      if (ppoll(watched.data(), watched.size(), wait < 0 ? nullptr : &limit, nullptr) < 0 && errno != EINTR) {
        fail("ppoll");
      }
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < senders_.size(); ++i) {
        if (watched[i].revents != 0) receive(senders_[i]);
      }
      release();
      for (size_t to = 0; to < fds_.size(); ++to) flush(to);
    }
  }

  void receive(size_t from) {
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> vectors;
    std::array<std::array<char, CMSG_SPACE(sizeof(timespec))>, kBatch> times;
    std::array<std::shared_ptr<Frame>, kBatch> frames;
    for (size_t i = 0; i < kBatch; ++i) {
      frames[i] = take_frame();
      vectors[i] = {frames[i]->bytes.data(), kFrameBytes};
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_control = times[i].data();
      messages[i].msg_hdr.msg_controllen = times[i].size();
    }
    const int count = recvmmsg(fds_[from], messages.data(), kBatch, 0, nullptr);
    const Nanoseconds between_clocks = now_ns() - now_ns(CLOCK_REALTIME);
    for (size_t i = 0; i < kBatch; ++i) {
      if (static_cast<int>(i) < count) {
        frames[i]->length = messages[i].msg_len;
        carry(from, std::move(frames[i]), arrival_ns(messages[i].msg_hdr) + between_clocks);
      } else {
        spare_.push_back(std::move(frames[i]));
      }
    }
  }

  void carry(size_t from, std::shared_ptr<Frame> frame, Nanoseconds arrived) {
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
    Nanoseconds due = arrived + path.delay;
    if (path.jitter > 0) {
      due += static_cast<Nanoseconds>(std::uniform_real_distribution<>(0, 1)(path.random) *
                                      static_cast<double>(path.jitter));
    }
    if (due > arrived) due = (due + kTickNs - 1) / kTickNs * kTickNs;
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
      if (now - waiting_.top().due > kLateNs) ++late_;
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

  const std::vector<size_t> senders_;
  const std::vector<int>& fds_;
  std::vector<std::vector<Path>>& paths_;
  std::mutex mutex_;
  std::vector<std::vector<std::shared_ptr<const Frame>>> outgoing_;  // due, by interface
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::vector<std::shared_ptr<Frame>> spare_;
  uint64_t sequence_ = 0;
  uint64_t late_ = 0;
};

class Relay {
 public:
  explicit Relay(const std::vector<std::string>& interfaces) {
    network_.paths.resize(interfaces.size());
    for (size_t from = 0; from < interfaces.size(); ++from) {
      network_.fds.push_back(open_interface(interfaces[from]));
      network_.paths[from].resize(interfaces.size());
      for (size_t to = 0; to < interfaces.size(); ++to)
        network_.paths[from][to].random.seed(static_cast<unsigned>(1 + from * 1000 + to));
    }
    const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, interfaces.size());
    std::vector<std::vector<size_t>> senders(threads);
    for (size_t from = 0; from < interfaces.size(); ++from) senders[from % senders.size()].push_back(from);
    for (auto& each : senders) carriers_.push_back(std::make_unique<Carrier>(network_, std::move(each)));
  }

  // Returns at the end of the standard input.
  void run() {
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<std::unique_lock<std::mutex>> locks;
      for (const auto& carrier : carriers_) locks.emplace_back(carrier->mutex());
      std::cout << answer(line) << std::endl;
    }
  }

 private:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, from, to;
    words >> command;
    if (command == "overruns") return "ok " + std::to_string(overruns());
    if (command == "late") {
      uint64_t late = 0;
      for (const auto& carrier : carriers_) late += carrier->late();
      return "ok " + std::to_string(late);
    }
    words >> from >> to;
    std::vector<Path*> chosen;
    for (size_t i = 0; i < network_.paths.size(); ++i) {
      for (size_t j = 0; j < network_.paths.size(); ++j) {
        if (i != j && (from == "*" || from == std::to_string(i)) && (to == "*" || to == std::to_string(j))) {
          chosen.push_back(&network_.paths[i][j]);
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
    for (const int fd : network_.fds) {
      tpacket_stats statistics{};
      socklen_t length = sizeof statistics;
      if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0) {
        overruns_ += statistics.tp_drops;  // reading sets the kernel's count to zero
      }
    }
    return overruns_;
  }

  Network network_;
  std::vector<std::unique_ptr<Carrier>> carriers_;
  uint64_t overruns_ = 0;
};

}  // namespace

int main(int count, char** words) {
  Relay relay(std::vector<std::string>(words + 1, words + count));
  std::cout << "ready" << std::endl;
  relay.run();
  std::quick_exit(0);  // the threads go on until then
}
