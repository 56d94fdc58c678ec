// A whole job in one process: real nodes, real sockets on the loopback interface, one thread per
// rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "node/node.h"

namespace byteps::node {

// For calls that nothing interrupts.
inline bool always() { return true; }

struct JobOptions {
  int workers = 2;
  int servers = 0;
  int ranks_per_machine = 1;  // servers count as separate machines; 0: all nodes are on one machine
  std::function<void(NodeConfig&, int rank)> adjust;  // servers have the ranks from `workers` on
};

class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();  // shuts all nodes down at once

  Node& worker(int rank) { return *nodes_[static_cast<size_t>(rank)]; }
  Node& server(int number) { return *nodes_[static_cast<size_t>(options_.workers + number)]; }
  // The error with which node `i` failed to join, or ok.
  const Status& start_status(int i) const { return start_status_[static_cast<size_t>(i)]; }
  bool all_started() const;

  // Runs `body(rank, node)` on one thread per worker and waits for all of them.
  void on_all(const std::function<void(int, Node&)>& body);
  void shut_down(int rank) { worker(rank).shutdown(); }

 private:
  JobOptions options_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Status> start_status_;
};

// Runs push_pull on `values` in place and waits for it.
template <typename T>
Status push_pull(Node& node, const std::string& name, std::vector<T>& values, DType dtype,
                 ReduceOp op = ReduceOp::kSum, uint32_t root = 0) {
  auto* data = reinterpret_cast<std::byte*>(values.data());
  auto handle = node.push_pull({.name = name,
                                .dtype = dtype,
                                .bytes = values.size() * sizeof(T),
                                .op = op,
                                .root = root,
                                .priority = 0},
                               {data, data});
  if (!handle) return handle.status();
  return node.wait(*handle, now_us() + 60'000'000, [] { return true; });
}

}  // namespace byteps::node
