#include "protocol/numbering.h"

#include <algorithm>

#include "base/check.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

const char* number_word(Role role) { return role == Role::kWorker ? "rank" : "server"; }

std::string count_of(size_t count, Role role) {
  const char* word = role == Role::kWorker ? " worker" : " server";
  return std::to_string(count) + word + (count == 1 ? "" : "s");
}

std::string counts_of(size_t workers, size_t servers) {
  return count_of(workers, Role::kWorker) + " and " + count_of(servers, Role::kServer);
}

// Sets the local rank of each worker that joined without one. `nodes`: workers first, by rank.
void number_by_machine(std::vector<Numbering::Numbered>& nodes) {
  std::map<std::string, int32_t> sizes;
  std::vector<int32_t> local_ranks;
  for (const auto& [node, index] : nodes) {
    local_ranks.push_back(node.role == Role::kWorker ? sizes[node.machine]++ : -1);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeInfo& node = nodes[i].node;
    if (node.role != Role::kWorker || node.local_rank >= 0) continue;
    node.local_rank = local_ranks[i];
    node.local_size = sizes[node.machine];
  }
}

}  // namespace

Numbering::Numbering(uint32_t num_workers, uint32_t num_servers)
    : num_workers_(num_workers), num_servers_(num_servers) {}

Status Numbering::add(const Join& join) {
  if (num_workers_ == 0) {
    num_workers_ = join.num_workers;
    if (num_servers_ == 0) num_servers_ = join.num_servers;
  }
  BPS_RETURN_IF_ERROR(check(join).with_context(join.self.describe()));
  if (join.self.rank >= 0) taken_[{join.self.role, join.self.rank}] = joined_.size();
  if (joined_.empty()) version_ = join.version;
  joined_.push_back(join.self);
  return Status::ok();
}

Status Numbering::check_version(const Join& join) const {
  if (joined_.empty() || join.version == version_) return Status::ok();
  return invalid_argument("has byteps " + join.version + ", " + joined_.front().describe() + " has byteps " +
                          version_ + ": install the same version on all machines");
}

Status Numbering::check(const Join& join) const {
  BPS_RETURN_IF_ERROR(check_version(join));
  if (num_workers_ > 0) {
    BPS_RETURN_IF_ERROR(check_counts(join));
  } else if (join.self.role == Role::kWorker) {  // a server waits for the first worker, which knows it
    return invalid_argument("the number of workers is unknown");
  }
  return check_number(join.self);
}

Status Numbering::check_counts(const Join& join) const {
  if (uint64_t{num_workers_} + num_servers_ > kMaxNodes) {
    return invalid_argument("expected at most " + std::to_string(kMaxNodes) + " nodes, got " +
                            counts_of(num_workers_, num_servers_));
  }
  auto contradicts = [](uint32_t told, uint32_t known) { return told != 0 && told != known; };
  if (contradicts(join.num_workers, num_workers_) || contradicts(join.num_servers, num_servers_)) {
    return invalid_argument("expects " + counts_of(join.num_workers, join.num_servers) +
                            ", but the job has " + counts_of(num_workers_, num_servers_) +
                            ": start all machines with equal numbers of machines, of processes on each, "
                            "and of servers");
  }
  if (count(join.self.role) == expected(join.self.role)) {
    return invalid_argument("the job is complete: it has " +
                            count_of(expected(join.self.role), join.self.role) +
                            ", and all of them have joined");
  }
  // Servers that joined before the first worker could not be checked then.
  const auto last_server = taken_.lower_bound({Role::kServer, static_cast<int32_t>(num_servers_)});
  if (count(Role::kServer) > num_servers_ || last_server != taken_.end()) {
    const size_t one = last_server != taken_.end() ? last_server->second : 0;
    return invalid_argument("expects " + count_of(num_servers_, Role::kServer) + ", but " +
                            joined_[one].describe() + " has joined");
  }
  return Status::ok();
}

Status Numbering::check_number(const NodeInfo& node) const {
  if (num_workers_ > 0 && node.rank >= 0 && static_cast<uint32_t>(node.rank) >= expected(node.role)) {
    return invalid_argument(std::string(number_word(node.role)) + ": expected a number below " +
                            std::to_string(expected(node.role)) + ", got " + std::to_string(node.rank));
  }
  if (auto taken = taken_.find({node.role, node.rank}); taken != taken_.end()) {
    return invalid_argument("its number is taken by " + joined_[taken->second].describe());
  }
  const bool has_local_rank = node.local_rank >= 0 && node.local_rank < node.local_size;
  const bool needs_local_rank = node.local_rank < 0 && node.local_size < 0;
  if (node.role == Role::kWorker && !has_local_rank && !needs_local_rank) {
    return invalid_argument("local rank: expected a number below the local size of " +
                            std::to_string(node.local_size) + ", got " + std::to_string(node.local_rank));
  }
  return Status::ok();
}

size_t Numbering::count(Role role) const {
  return static_cast<size_t>(std::ranges::count(joined_, role, &NodeInfo::role));
}

bool Numbering::complete() const {
  return num_workers_ > 0 && joined_.size() == size_t{num_workers_} + num_servers_;
}

std::string Numbering::missing() const {
  if (num_workers_ == 0) return "all workers";
  std::vector<std::string> names = missing_of(Role::kWorker);
  for (std::string& name : missing_of(Role::kServer)) names.push_back(std::move(name));
  return enumerate(names);
}

std::vector<std::string> Numbering::missing_of(Role role) const {
  const size_t joined = count(role);
  if (joined == expected(role)) return {};
  const auto numbered = std::ranges::count(taken_, role, [](const auto& entry) { return entry.first.first; });
  if (joined == 0 || static_cast<size_t>(numbered) < joined) return {count_of(expected(role) - joined, role)};
  std::vector<std::string> names;
  for (int32_t number = 0; number < static_cast<int32_t>(expected(role)); ++number) {
    if (!taken_.contains({role, number}))
      names.push_back(std::string(number_word(role)) + " " + std::to_string(number));
  }
  return names;
}

std::vector<Numbering::Numbered> Numbering::number() const {
  BPS_CHECK(complete()) << missing() << " missing";
  std::map<std::string, size_t> machines;  // -> index of its first worker
  std::vector<Numbered> nodes;
  for (size_t i = 0; i < joined_.size(); ++i) {
    nodes.push_back({joined_[i], i});
    if (joined_[i].role == Role::kWorker) machines.try_emplace(joined_[i].machine, i);
  }
  auto machine_of = [&](const Numbered& numbered) {
    return numbered.node.role == Role::kWorker ? machines.at(numbered.node.machine) : 0;
  };
  std::ranges::stable_sort(nodes, {}, machine_of);
  std::map<Role, int32_t> next;
  for (auto& [node, index] : nodes) {
    if (node.rank >= 0) continue;
    int32_t& number = next[node.role];
    while (taken_.contains({node.role, number})) ++number;
    node.rank = number++;
  }
  std::ranges::sort(nodes, {},
                    [](const Numbered& each) { return std::pair(each.node.role, each.node.rank); });
  number_by_machine(nodes);
  return nodes;
}

}  // namespace byteps::protocol
