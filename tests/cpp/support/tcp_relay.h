// A relay between TCP connections and an address, which can reset the connections as a firewall does.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "transport/address.h"

namespace byteps::transport {

class TcpRelay {
 public:
  explicit TcpRelay(const Address& target);
  ~TcpRelay();

  const Address& address() const { return address_; }
  // Resets both ends of all connections that exist now; what is on its way is lost.
  void reset_all();
  // Nobody can connect any more.
  void close();

 private:
  struct Pair {
    UniqueFd from;
    UniqueFd to;
  };
  void run();

  const Address target_;
  Address address_;
  UniqueFd listener_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  bool closed_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace byteps::transport
