#include "elastic/exchange.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/annotations.h"
#include "base/countdown.h"

namespace byteps::elastic {
namespace {

using Tables = Result<std::vector<Knowledge>>;

constexpr const char* kSizes = "byteps.elastic.sizes";
constexpr const char* kTables = "byteps.elastic.tables";
constexpr const char* kResult = "byteps.elastic.result.";

// Kept by the callbacks of the push_pulls.
struct TableExchange {
  node::AsyncNode& node;
  transport::EventLoop& loop;
  UniqueFunction<void(Tables)> done;
  std::vector<std::byte> own;
  std::vector<uint64_t> sizes;  // by rank
  std::vector<std::byte> all;

  void finish(Tables tables) {
    loop.post([done = std::move(done), tables = std::move(tables)]() mutable { done(std::move(tables)); });
  }
};

class Sending {
 public:
  explicit Sending(std::vector<ResultTransfer> what) : transfers(std::move(what)) {}
  void note(const Status& status) {
    MutexLock lock(mutex_);
    if (failure_.is_ok()) failure_ = status;
  }
  Status failure() {
    MutexLock lock(mutex_);
    return failure_;
  }

  const std::vector<ResultTransfer> transfers;  // keeps their memory

 private:
  Mutex mutex_;
  Status failure_ BPS_GUARDED_BY(mutex_);  // the first one
};

Tables parse(const TableExchange& exchange) {
  std::vector<Knowledge> all;
  size_t offset = 0;
  for (const uint64_t size : exchange.sizes) {
    const Bytes bytes = Bytes(exchange.all).subspan(offset, size);
    auto table = protocol::decode_ledger(bytes.subspan(1));
    if (!table) return table.status();
    all.push_back({std::move(*table), bytes[0] != std::byte{0}});
    offset += size;
  }
  return all;
}

void push_tables(const std::shared_ptr<TableExchange>& exchange) {
  uint64_t total = 0;
  uint64_t offset = 0;
  for (int rank = 0; rank < exchange->node.size(); ++rank) {
    if (rank == exchange->node.rank()) offset = total;
    total += exchange->sizes[static_cast<size_t>(rank)];
  }
  exchange->all.resize(total);
  std::memcpy(exchange->all.data() + offset, exchange->own.data(), exchange->own.size());
  exchange->node.push_pull({.name = kTables, .dtype = DType::kUInt8, .bytes = total},
                           {.input = exchange->all.data(), .output = exchange->all.data()},
                           [exchange](const Status& status) {
                             exchange->finish(status.is_ok() ? parse(*exchange) : Tables(status));
                           });
}

}  // namespace

void exchange_tables(node::AsyncNode& node, transport::EventLoop& loop, const Knowledge& own,
                     UniqueFunction<void(Tables)> done) {
  std::vector<std::byte> content{own.has_state ? std::byte{1} : std::byte{0}};
  const std::vector<std::byte> table = protocol::encode(own.table);
  content.insert(content.end(), table.begin(), table.end());
  const auto exchange =
      std::make_shared<TableExchange>(TableExchange{node, loop, std::move(done), std::move(content), {}, {}});
  exchange->sizes.resize(static_cast<size_t>(node.size()));
  exchange->sizes[static_cast<size_t>(node.rank())] = exchange->own.size();
  auto* const memory = reinterpret_cast<std::byte*>(exchange->sizes.data());
  const uint64_t bytes = exchange->sizes.size() * sizeof(uint64_t);
  node.push_pull({.name = kSizes, .dtype = DType::kInt64, .bytes = bytes},
                 {.input = memory, .output = memory}, [exchange](const Status& status) {
                   status.is_ok() ? push_tables(exchange) : exchange->finish(status);
                 });
}

void send_results(node::AsyncNode& node, transport::EventLoop& loop, std::vector<ResultTransfer> transfers,
                  UniqueFunction<void(Status)> done) {
  const auto sending = std::make_shared<Sending>(std::move(transfers));
  const auto countdown =
      Countdown::start(sending->transfers.size(), [&loop, sending, done = std::move(done)]() mutable {
        loop.post([done = std::move(done), status = sending->failure()]() mutable { done(status); });
      });
  for (size_t i = 0; i < sending->transfers.size(); ++i) {
    const auto& [what, values] = sending->transfers[i];
    node.push_pull({.name = kResult + std::to_string(i),
                    .dtype = DType::kUInt8,
                    .bytes = what.part.bytes,
                    .op = ReduceOp::kBroadcast,
                    .root = what.holder},
                   {.input = values.get(), .output = values.get()},
                   [sending, countdown](const Status& status) {
                     sending->note(status);
                     countdown->report();
                   });
  }
}

}  // namespace byteps::elastic
