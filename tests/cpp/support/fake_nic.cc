#include "support/fake_nic.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "support/fake_queue_pair.h"
#include "support/fake_wire_thread.h"

namespace byteps::transport::rdma {
namespace {

// A mapping of a dma-buf's bytes; empty if mapping failed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* start, size_t bytes) : start_(start), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : start_(other.start_), bytes_(std::exchange(other.bytes_, 0)) {}
  ~Mapping() {
    if (bytes_ > 0) munmap(start_, bytes_);
  }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(start_) + offset; }

 private:
  void* start_ = nullptr;
  size_t bytes_ = 0;
};

class FakeRegion final : public MemoryRegion {
 public:
  FakeRegion(fake::WireThread& thread, MemoryKey key, Mapping mapping)
      : thread_(thread), key_(key), mapping_(std::move(mapping)) {}
  ~FakeRegion() override {
    thread_.run([&](fake::Wire& wire) { wire.remove_region(key_); });
  }
  MemoryKey key() const override { return key_; }

 private:
  fake::WireThread& thread_;
  const MemoryKey key_;
  const Mapping mapping_;
};

NicInfo info_of(const FakeNicOptions& options, uint16_t number) {
  const auto high = static_cast<uint8_t>(number >> 8);
  const auto low = static_cast<uint8_t>(number & 0xff);
  NicInfo info;
  info.device = options.device;
  info.is_ethernet = options.is_ethernet;
  info.interface = options.interface;
  info.mtu_bytes = options.mtu_bytes;
  info.lid = options.is_ethernet ? uint16_t{0} : number;
  info.gid_index = options.is_ethernet ? 1 : 0;
  info.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low};
  info.gid_text = "::ffff:10.0." + std::to_string(high) + "." + std::to_string(low) + " (fake)";
  info.max_message_bytes = options.max_message_bytes;
  info.on_demand_paging = options.on_demand_paging;
  return info;
}

Result<std::unique_ptr<MemoryRegion>> register_region(fake::WireThread& thread, fake::Region region,
                                                      Mapping mapping = {}) {
  Result<MemoryKey> key = internal("not asked");
  thread.run([&](fake::Wire& wire) {
    key = wire.add_region(region);
    region.card->statistics.failed_registrations += !key.is_ok();
  });
  if (!key) return key.status();
  return std::unique_ptr<MemoryRegion>(std::make_unique<FakeRegion>(thread, *key, std::move(mapping)));
}

}  // namespace

FakeNic::FakeNic(fake::WireThread& thread, std::unique_ptr<fake::Card> card)
    : thread_(thread), card_(std::move(card)) {
  thread_.run([&](fake::Wire& wire) { wire.add(*card_); });
}

FakeNic::~FakeNic() {
  thread_.run([&](fake::Wire& wire) { wire.remove(*card_); });
}

const NicInfo& FakeNic::info() const { return card_->info; }

Result<std::unique_ptr<MemoryRegion>> FakeNic::register_memory(MutableBytes memory, Access access) {
  if (memory.empty())
    return invalid_argument("registering memory at " + info().to_string() + ": it is empty");
  return register_region(thread_, {.card = card_.get(),
                                   .address = reinterpret_cast<uintptr_t>(memory.data()),
                                   .memory = memory,
                                   .access = access});
}

Result<std::unique_ptr<MemoryRegion>> FakeNic::register_dmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                               uint64_t address, Access access) {
  const std::string what = "registering a dma-buf at " + info().to_string();
  if (!card_->options.takes_dmabuf) return unimplemented(what + ": this card cannot");
  struct stat file{};
  if (fstat(fd, &file) != 0) return from_errno(what, errno);
  const auto size = static_cast<uint64_t>(file.st_size);
  if (bytes == 0 || offset > size || bytes > size - offset) {
    return invalid_argument(what + ": expected " + std::to_string(bytes) + " bytes at " +
                            std::to_string(offset) + ", got " + std::to_string(size) + " in all");
  }
  void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (start == MAP_FAILED) return from_errno(what, errno);
  Mapping mapping(start, size);
  return register_region(thread_,
                         {.card = card_.get(),
                          .address = address,
                          .memory = {mapping.at(offset), bytes},
                          .access = access,
                          .is_dmabuf = true},
                         std::move(mapping));
}

Result<std::unique_ptr<CompletionChannel>> FakeNic::make_channel() {
  return std::unique_ptr<CompletionChannel>(std::make_unique<fake::FakeChannel>());
}

Result<std::unique_ptr<QueuePair>> FakeNic::make_queue_pair(CompletionChannel& channel, void* tag,
                                                            const QueuePairOptions& options) {
  return fake::make_queue_pair(thread_, *card_, dynamic_cast<fake::FakeChannel&>(channel), tag, options);
}

int FakeNic::event_fd() const { return card_->events.fd(); }
NicEvent FakeNic::next_event() { return card_->events.pop().value_or(NicEvent::kNone); }

FakeNicStatistics FakeNic::statistics() const {
  FakeNicStatistics statistics;
  thread_.run([&](fake::Wire&) { statistics = card_->statistics; });
  return statistics;
}

void FakeNic::fail_next_registration(Status why) {
  thread_.run([&](fake::Wire&) { card_->registration_failures.push_back(why); });
}

void FakeNic::fail_next_queue_pair(Status why) {
  thread_.run([&](fake::Wire&) { card_->queue_pair_failures.push_back(why); });
}

void FakeNic::fail_next_connect(Status why) {
  thread_.run([&](fake::Wire&) { card_->connect_failures.push_back(why); });
}

void FakeNic::set_port(bool is_up) {
  thread_.run([&](fake::Wire&) {
    card_->is_up = is_up;
    card_->events.push(is_up ? NicEvent::kPortUp : NicEvent::kPortDown);
  });
}

void FakeNic::be_gone() {
  thread_.run([&](fake::Wire& wire) { wire.be_gone(*card_); });
}

FakeFabric::FakeFabric(FakeFabricOptions options) : thread_(std::make_unique<fake::WireThread>(options)) {}
FakeFabric::~FakeFabric() = default;

std::unique_ptr<FakeNic> FakeFabric::make_nic(FakeNicOptions options) {
  auto card = std::make_unique<fake::Card>();
  thread_->run([&](fake::Wire& wire) { card->info = info_of(options, ++wire.cards_made); });
  card->options = std::move(options);
  return std::unique_ptr<FakeNic>(new FakeNic(*thread_, std::move(card)));
}

void FakeFabric::set_options(FakeFabricOptions options) {
  thread_->run([&](fake::Wire& wire) { wire.options = options; });
}

void FakeFabric::cut(const FakeNic& one, const FakeNic& other) {
  thread_->run([&](fake::Wire& wire) { wire.cut(*one.card_, *other.card_); });
}

void FakeFabric::mend(const FakeNic& one, const FakeNic& other) {
  thread_->run([&](fake::Wire& wire) { wire.mend(*one.card_, *other.card_); });
}

FakeFabricStatistics FakeFabric::statistics() const {
  FakeFabricStatistics statistics;
  thread_->run([&](fake::Wire& wire) { statistics = wire.statistics; });
  return statistics;
}

}  // namespace byteps::transport::rdma
