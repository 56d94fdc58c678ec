// Whole jobs in one process, so that the sanitizers see all threads of all roles.
#include "node/node.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "support/job.h"

namespace byteps::node {
namespace {

bool always() { return true; }

struct Shape {
  int workers;
  int servers;
  int ranks_per_machine = 1;

  JobOptions options() const {
    return {
        .workers = workers, .servers = servers, .ranks_per_machine = ranks_per_machine, .adjust = nullptr};
  }
};

class JobTest : public testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, JobTest,
                         testing::Values(Shape{1, 0}, Shape{1, 1}, Shape{2, 0}, Shape{2, 1}, Shape{2, 2},
                                         Shape{2, 3}, Shape{3, 0}, Shape{4, 2}, Shape{2, 0, 2},
                                         Shape{4, 0, 4}, Shape{4, 1, 4}, Shape{4, 0, 2}, Shape{5, 1, 2},
                                         Shape{5, 2, 3}),
                         [](const auto& test) {
                           return std::to_string(test.param.workers) + "workers" +
                                  std::to_string(test.param.servers) + "servers" +
                                  std::to_string(test.param.ranks_per_machine) + "together";
                         });

TEST_P(JobTest, SumsTensorsOfManySizesOverSeveralRounds) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    EXPECT_EQ(node.rank(), rank);
    EXPECT_EQ(node.size(), n);
    for (int round = 0; round < 3; ++round) {
      for (const size_t count : {0, 1, 7, 1000, 16384, 16385, 200'000}) {
        std::vector<int32_t> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i) * (rank + 1) + round;
        ASSERT_TRUE(push_pull(node, "tensor" + std::to_string(count), values, DType::kInt32).is_ok());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(values[i], static_cast<int32_t>(i) * n * (n + 1) / 2 + round * n) << count << " " << i;
        }
      }
    }
  });
}

TEST_P(JobTest, EveryReductionAndBroadcast) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    const auto run = [&](ReduceOp op, uint32_t root = 0) {
      std::vector<double> values(50'000, rank + 1.0);
      EXPECT_TRUE(push_pull(node, std::string(to_string(op)) + std::to_string(root), values, DType::kFloat64,
                            op, root)
                      .is_ok());
      EXPECT_EQ(values.front(), values.back());
      return values.front();
    };
    EXPECT_EQ(run(ReduceOp::kSum), n * (n + 1) / 2.0);
    EXPECT_DOUBLE_EQ(run(ReduceOp::kAverage), (n + 1) / 2.0);
    EXPECT_EQ(run(ReduceOp::kMin), 1);
    EXPECT_EQ(run(ReduceOp::kMax), n);
    EXPECT_EQ(run(ReduceOp::kProduct), std::tgamma(n + 1));
    for (int root = 0; root < n; ++root)
      EXPECT_EQ(run(ReduceOp::kBroadcast, static_cast<uint32_t>(root)), root + 1);
  });
}

TEST_P(JobTest, ManyInFlightInAnOrderOfEachRanksOwn) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    constexpr int kTensors = 100;
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 3; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<float>> input(kTensors), output(kTensors);
      std::vector<protocol::Handle> handles(kTensors);
      for (const int t : order) {
        const auto index = static_cast<size_t>(t);
        input[index].assign(100 + 1000 * (index % 40), static_cast<float>(rank + t));
        output[index].resize(input[index].size());
        auto handle = node.push_pull({.name = "t" + std::to_string(t),
                                      .dtype = DType::kFloat32,
                                      .bytes = input[index].size() * sizeof(float),
                                      .op = ReduceOp::kSum,
                                      .root = 0,
                                      .priority = -t},
                                     reinterpret_cast<const std::byte*>(input[index].data()),
                                     reinterpret_cast<std::byte*>(output[index].data()));
        ASSERT_TRUE(handle.is_ok()) << handle.status();
        handles[index] = *handle;
      }
      for (const int t : order) {
        const auto index = static_cast<size_t>(t);
        ASSERT_TRUE(node.wait(handles[index], kNever, always).is_ok());
        const auto expected = static_cast<float>(n * t + n * (n - 1) / 2);
        EXPECT_EQ(output[index].front(), expected);
        EXPECT_EQ(output[index].back(), expected);
        EXPECT_EQ(input[index].front(), static_cast<float>(rank + t)) << "the input was written to";
      }
    }
  });
}

// Rank 0's averages, as bytes. Every order of summation rounds the values differently.
std::string averages_of_noise(const JobOptions& options) {
  Job job(options);
  EXPECT_TRUE(job.all_started());
  std::string result;
  job.on_all([&](int rank, Node& node) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      std::vector<uint16_t> values(150'002);
      for (size_t i = 0; i < values.size(); ++i) {
        // Numbers of either sign between about 2^-7 and 2^8 in both 16-bit formats: no NaN, no
        // infinity.
        values[i] = static_cast<uint16_t>((random() & 0x8fff) | 0x3800);
        // The lower half of each value.
        if (dtype == DType::kFloat32 && i % 2 == 0) values[i] = static_cast<uint16_t>(random());
      }
      ASSERT_TRUE(push_pull(node, std::string(to_string(dtype)), values, dtype, ReduceOp::kAverage).is_ok());
      if (rank == 0) result.append(reinterpret_cast<const char*>(values.data()), values.size() * 2);
    }
  });
  return result;
}

class BitsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(RanksPerMachine, BitsTest, testing::Values(1, 2, 4));

TEST_P(BitsTest, DependOnNothingButWhichRanksShareAMachine) {
  const int together = GetParam();
  std::string first;
  for (const int servers : {0, 1, 3}) {
    for (const std::string placement : {"auto", "ps", "allreduce", "weights"}) {
      if (servers == 0 && placement == "ps") continue;
      for (const int64_t partition_bytes : {4096, 100'000, 1 << 20}) {
        for (const bool shm : {true, false}) {
          if (!shm && (together == 1 || partition_bytes == 4096)) continue;
          JobOptions options{
              .workers = 4, .servers = servers, .ranks_per_machine = together, .adjust = nullptr};
          options.adjust = [&](NodeConfig& config, int) {
            config.partition_bytes = partition_bytes;
            config.shm = shm;
            config.placement = placement;
            if (placement != "weights") return;
            config.placement += ":1";
            for (int reducer_host = 1; reducer_host < 4 / together + servers; ++reducer_host)
              config.placement += ",2.5";
          };
          const std::string bits = averages_of_noise(options);
          if (first.empty()) first = bits;
          ASSERT_TRUE(bits == first) << placement << ", " << servers << " servers, partitions of "
                                     << partition_bytes << (shm ? "" : ", without shared memory");
        }
      }
    }
  }
}

TEST(NodeTest, ContradictorySizesFailOnBothRanks) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int rank, Node& node) {
    std::vector<float> values(rank == 0 ? 100 : 101);
    const Status status = push_pull(node, "x", values, DType::kFloat32);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status;
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
    std::vector<float> others(10, 1.0f);
    EXPECT_TRUE(push_pull(node, "y", others, DType::kFloat32).is_ok()) << "the job goes on";
    EXPECT_EQ(others[0], 2.0f);
  });
}

TEST(NodeTest, ContradictoryReductionsFailOnBothRanksAndTheNextRoundWorks) {
  Job job({.workers = 2, .servers = 1, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int rank, Node& node) {
    std::vector<float> values(100, 1.0f);
    const Status status =
        push_pull(node, "x", values, DType::kFloat32, rank == 0 ? ReduceOp::kSum : ReduceOp::kAverage);
    EXPECT_FALSE(status.is_ok()) << "rank " << rank;
    values.assign(100, 1.0f);
    EXPECT_TRUE(push_pull(node, "x", values, DType::kFloat32).is_ok());
    EXPECT_EQ(values[99], 2.0f);
  });
}

TEST(NodeTest, NameInFlightIsRefused) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  std::vector<float> a(10, 1.0f), b(10, 1.0f);
  Node& node = job.worker(0);
  const protocol::PushPull request{.name = "x", .dtype = DType::kFloat32, .bytes = 40};
  auto* data = reinterpret_cast<std::byte*>(a.data());
  auto first = node.push_pull(request, data, data);
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(node.push_pull(request, data, data).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(push_pull(job.worker(1), "x", b, DType::kFloat32).is_ok());
  EXPECT_TRUE(node.wait(*first, kNever, always).is_ok());
  EXPECT_EQ(node.wait(*first, kNever, always).code(), StatusCode::kInvalidArgument) << "freed";
}

TEST(NodeTest, ARankThatLeavesFailsRanksThatWaitForIt) {
  for (const int servers : {0, 1}) {
    Job job({.workers = 3, .servers = servers, .adjust = nullptr});
    ASSERT_TRUE(job.all_started());
    job.on_all([&job](int rank, Node& node) {
      std::vector<float> values(100'000, 1.0f);
      ASSERT_TRUE(push_pull(node, "x", values, DType::kFloat32).is_ok());
      if (rank == 1) return job.shut_down(1);
      for (const char* name : {"x", "y"}) {
        const Status status = push_pull(node, name, values, DType::kFloat32);
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
        EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
      }
    });
  }
}

TEST(NodeTest, AnExceptionThatEndsARankIsReportedToAllOthers) {
  for (const int servers : {0, 1}) {
    for (const int guilty : {0, 1}) {  // rank 0 hosts the scheduler
      Job job({.workers = 3, .servers = servers, .adjust = nullptr});
      ASSERT_TRUE(job.all_started());
      job.on_all([guilty](int rank, Node& node) {
        std::vector<float> values(100'000, 1.0f);
        ASSERT_TRUE(push_pull(node, "x", values, DType::kFloat32).is_ok());
        // The exception also ends results in flight to others.
        ASSERT_TRUE(node.barrier(always).is_ok());
        if (rank == guilty) return node.shutdown("KeyError: 'label'");
        for (const char* name : {"x", "y"}) {
          const Status status = push_pull(node, name, values, DType::kFloat32);
          EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
          EXPECT_NE(status.message().find("rank " + std::to_string(guilty) + " (host "), std::string::npos)
              << status;
          EXPECT_TRUE(status.message().ends_with(") ended by KeyError: 'label'")) << status;
        }
        node.shutdown("PeerLostError: rank 1 ended");
      });
    }
  }
}

TEST(NodeTest, ErrorsAboutARankThatLeftNameItsException) {
  for (const int servers : {0, 1}) {
    for (const int guilty : {0, 1}) {
      Job job({.workers = 3, .servers = servers, .adjust = nullptr});
      ASSERT_TRUE(job.all_started());
      job.on_all([guilty](int rank, Node& node) {
        std::vector<float> values(100'000, 1.0f);
        ASSERT_TRUE(push_pull(node, "x", values, DType::kFloat32).is_ok());
        if (rank == guilty) return node.shutdown("", "KeyError: 'label'");
        const Status status = push_pull(node, "x", values, DType::kFloat32);
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
        EXPECT_TRUE(status.message().ends_with(" has left the job after KeyError: 'label'")) << status;
      });
    }
  }
}

TEST(NodeTest, ShutdownFailsWhatIsInFlight) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  std::vector<float> values(1'000'000, 1.0f);
  auto* data = reinterpret_cast<std::byte*>(values.data());
  auto handle =
      job.worker(0).push_pull({.name = "x", .dtype = DType::kFloat32, .bytes = 4'000'000}, data, data);
  ASSERT_TRUE(handle.is_ok());
  job.shut_down(0);
  EXPECT_EQ(job.worker(0).wait(*handle, kNever, always).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.worker(0).push_pull({.name = "y", .bytes = 4}, data, data).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(NodeTest, Barrier) {
  Job job({.workers = 3, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  std::atomic<int> arrived{0};
  job.on_all([&arrived](int, Node& node) {
    for (int i = 1; i <= 20; ++i) {
      arrived.fetch_add(1);
      ASSERT_TRUE(node.barrier(always).is_ok());
      EXPECT_GE(arrived.load(), 3 * i);
    }
  });
}

TEST(NodeTest, BarriersOfSeveralThreadsGoOneAfterTheOther) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int, Node& node) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&node] {
        for (int round = 0; round < 5; ++round) EXPECT_TRUE(node.barrier(always).is_ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(node.barrier(always).is_ok());
  });
}

TEST(NodeTest, AnInterruptedBarrierIsWaitedForByTheNextOne) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  EXPECT_EQ(job.worker(0).barrier([] { return false; }).code(), StatusCode::kAborted);
  job.on_all([](int rank, Node& node) {
    for (int i = 0; i < (rank == 0 ? 1 : 2); ++i) EXPECT_TRUE(node.barrier(always).is_ok());
  });
}

TEST(NodeTest, ARankThatNeverContributesIsNamedAfterTheTimeout) {
  Job job({.workers = 2, .servers = 0, .adjust = [](NodeConfig& config, int) { config.op_timeout_s = 0.5; }});
  ASSERT_TRUE(job.all_started());
  std::vector<float> values(10, 1.0f);
  const Status status = push_pull(job.worker(0), "x", values, DType::kFloat32);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
  EXPECT_EQ(job.worker(0).barrier(always).code(), StatusCode::kDeadlineExceeded);
}

TEST(NodeTest, AnotherSecretIsRefusedAndTheMissingRankNamed) {
  Job job({.workers = 2, .servers = 0, .adjust = [](NodeConfig& config, int rank) {
             config.start_timeout_s = 1;
             if (rank == 1) config.secret = "another";
           }});
  EXPECT_EQ(job.start_status(1).code(), StatusCode::kPermissionDenied) << job.start_status(1);
  EXPECT_EQ(job.start_status(0).code(), StatusCode::kDeadlineExceeded) << job.start_status(0);
  EXPECT_NE(job.start_status(0).message().find("rank 1"), std::string::npos) << job.start_status(0);
}

TEST(NodeTest, RanksAreNumberedWhenTheyHaveNone) {
  Job job({.workers = 3, .servers = 0, .ranks_per_machine = 0, .adjust = [](NodeConfig& config, int) {
             config.rank = -1;
           }});
  ASSERT_TRUE(job.all_started());
  std::vector<int> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(job.worker(i).rank());
    EXPECT_EQ(job.worker(i).local_rank(), job.worker(i).rank());
    EXPECT_EQ(job.worker(i).local_size(), 3);
  }
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(ranks, (std::vector{0, 1, 2}));
}

TEST(NodeTest, BadConfigurationListsEveryFault) {
  NodeConfig config;
  config.num_workers = 0;
  config.timeout_s = -1;
  config.placement = "best";
  const Status status = Node::create(config, always).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* name : {"num_workers", "timeout_s", "placement", "scheduler_ports"}) {
    EXPECT_NE(status.message().find(name), std::string::npos) << status;
  }
}

TEST(NodeTest, ServersEndWhenAllWorkersHaveLeft) {
  Job job({.workers = 2, .servers = 1, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  Status outcome = internal("not set");
  std::thread server([&] { outcome = job.server(0).wait_until_done(always); });
  job.on_all([](int, Node& node) { node.shutdown(); });
  server.join();
  EXPECT_TRUE(outcome.is_ok()) << outcome;
}

// Something may still refer to the node, such as garbage in Python.
TEST(NodeTest, AfterShutdownNothingOfANodeListens) {
  const std::string job_id = "test-" + std::to_string(getpid()) + "-listens";
  const auto sockets = [name = "@byteps-" + job_id] {
    std::ifstream table("/proc/net/unix");
    int count = 0;
    for (std::string line; std::getline(table, line);) count += line.find(name) != std::string::npos;
    return count;
  };
  Job job({.workers = 2, .servers = 0, .ranks_per_machine = 0, .adjust = [&](NodeConfig& config, int) {
             config.job_id = job_id;
           }});
  ASSERT_TRUE(job.all_started());
  EXPECT_EQ(sockets(), 4) << "two shards each";
  job.on_all([](int, Node& node) { node.shutdown(); });
  EXPECT_EQ(sockets(), 0);
}

TEST(NodeTest, ARankMayJoinTheNextJobWhileTheOthersStillLeaveThis) {
  NodeConfig again;
  Job job({.workers = 2, .servers = 0, .adjust = [&again](NodeConfig& config, int rank) {
             if (rank == 1) again = config;
           }});
  ASSERT_TRUE(job.all_started());
  job.shut_down(1);
  again.start_timeout_s = 0.5;
  const Status status = Node::create(again, always).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status << ": nobody starts the next one here";
}

}  // namespace
}  // namespace byteps::node
