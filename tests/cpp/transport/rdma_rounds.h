// Rounds of push and pull over an RDMA connection.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/slab.h"
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {

inline constexpr size_t kTensorBytes = 20'000;
inline constexpr size_t kSpacingBytes = 5 * 4096;

// A worker (kA) with several tensors, and a server (kB) that answers with each byte changed.
class RdmaRoundsTest : public RdmaTest {
 protected:
  RdmaRoundsTest() {
    recorders_[kB].keeps_leases = true;
    recorders_[kB].head = [this](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      if (arrival.payload.empty()) {
        copied_.resize(arrival.payload_bytes);
        return ReceiveBuffer::at(copied_);
      }
      receive_buffers_.update(
          [&](auto& receive_buffers) { receive_buffers.push_back(arrival.payload.data()); });
      return ReceiveBuffer::in_place();
    };
    recorders_[kB].frame = [this](Connection& connection, const Arrival& arrival, Bytes payload) {
      const size_t i = std::stoul(std::string(as_text(arrival.head)));
      const MutableBytes answer = answers_.bytes().subspan(i * most_bytes_, payload.size());
      std::transform(payload.begin(), payload.end(), answer.begin(), [](std::byte b) { return ~b; });
      connection.send(arrival.head, {.data = answer, .reply_space = {}, .returns_lease = arrival.lease},
                      sent_.expect_one());
      return Status::ok();
    };
    recorders_[kA].head = [this](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      const size_t i = std::stoul(std::string(as_text(arrival.head)));
      num_direct_ += arrival.payload.data() == tensors_.at(i).data();
      return ReceiveBuffer::at(tensors_.at(i));
    };
  }

  // One round trip of all tensors at once.
  void round(size_t num_tensors) {
    answered_ += num_tensors;
    for (size_t i = 0; i < num_tensors; ++i) {
      const MutableBytes tensor = tensors_.at(i);
      std::memcpy(tensor.data(), pattern(tensor.size(), i).data(), tensor.size());
    }
    run_on(loop(kA), [&] {
      for (size_t i = 0; i < num_tensors; ++i) {
        const MutableBytes tensor = tensors_.at(i);
        end(kA).send(as_bytes(std::to_string(1000 + i).substr(1)),
                     {.data = tensor, .reply_space = tensor, .reuse_key = i + 1}, sent_.expect_one());
      }
    });
    ASSERT_TRUE(recorders_[kA].wait_for_frames(answered_));
    expect_all_sent();
    for (size_t i = 0; i < num_tensors; ++i) {
      const MutableBytes tensor = tensors_.at(i);
      std::string expected = pattern(tensor.size(), i);
      for (char& c : expected) c = static_cast<char>(~c);
      ASSERT_TRUE(as_text(tensor) == expected) << i;
    }
  }
  void tensors_in(MutableBytes memory, size_t num_tensors) {
    for (size_t i = 0; i < num_tensors; ++i)
      tensors_.push_back(memory.subspan(i * kSpacingBytes, kTensorBytes));
  }
  std::vector<const void*> take_receive_buffers() {
    auto receive_buffers = receive_buffers_.get();
    receive_buffers_.update([](auto& all) { all.clear(); });
    return receive_buffers;
  }

  size_t most_bytes_ = kSpacingBytes;  // of a tensor
  Slab answers_{400 * kSpacingBytes};
  std::vector<MutableBytes> tensors_;
  std::vector<std::byte> copied_;
  Watched<std::vector<const void*>> receive_buffers_;
  std::atomic<size_t> num_direct_ = 0;  // number of answers that were written to their reply space
  size_t answered_ = 0;
};

}  // namespace byteps::transport::rdma
