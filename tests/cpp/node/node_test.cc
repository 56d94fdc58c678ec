// Whole jobs in one process, so that the sanitizers see all threads of all roles.
#include "node/node.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
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
  auto first = node.push_pull(request, {data, data});
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(node.push_pull(request, {data, data}).status().code(), StatusCode::kInvalidArgument);
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
      job.worker(0).push_pull({.name = "x", .dtype = DType::kFloat32, .bytes = 4'000'000}, {data, data});
  ASSERT_TRUE(handle.is_ok());
  job.shut_down(0);
  EXPECT_EQ(job.worker(0).wait(*handle, kNever, always).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.worker(0).push_pull({.name = "y", .bytes = 4}, {data, data}).status().code(),
            StatusCode::kFailedPrecondition);
}

// The service of this process reads the tensor where it is.
TEST(NodeTest, ATensorMayBeFreedOnceItsPushPullHasFailed) {
  Job job({.workers = 2, .servers = 0, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int rank, Node& node) {
    constexpr size_t kBytes = 64 << 20;
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const data = static_cast<std::byte*>(memory);
    Result<protocol::Handle> handle = failed_precondition("rank 1 does not take part");
    if (rank == 0)
      handle = node.push_pull({.name = "x", .dtype = DType::kFloat32, .bytes = kBytes}, {data, data});
    // The partitions of "x" are on their way before those of "y".
    std::vector<float> values(1000, 1.0f);
    ASSERT_TRUE(push_pull(node, "y", values, DType::kFloat32).is_ok());
    if (rank == 1) {
      node.shutdown("KeyError: 'label'");
    } else {
      ASSERT_TRUE(handle.is_ok());
      EXPECT_EQ(node.wait(*handle, kNever, always).code(), StatusCode::kUnavailable);
    }
    munmap(memory, kBytes);
  });
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
