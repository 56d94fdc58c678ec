// bps_sim: runs whole jobs in virtual time, one per seed.
//
//   bps_sim --seeds 10000 [--from 1] [--jobs 2]   runs that many seeds; exit status 1 if one fails
//   bps_sim --seed 4711 [--trace]                 replays one seed; shows all its events
//   bps_sim --elastic ...                         the same with elastic jobs (elastic_run.h)
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "sim/elastic_run.h"
#include "sim/run.h"

namespace byteps::sim {
namespace {

constexpr size_t kMaxJobs = 64;
constexpr size_t kShownFindings = 5;
constexpr size_t kShownTraceLines = 60;

struct Arguments {
  uint64_t from = 1;
  uint64_t seeds = 1000;
  uint64_t jobs = std::clamp<uint64_t>(std::thread::hardware_concurrency(), 1, kMaxJobs);
  bool single = false;
  bool trace = false;
  bool elastic = false;
};

[[noreturn]] void usage() {
  std::fputs(
      "usage: bps_sim [--elastic] [--seeds COUNT] [--from SEED] [--jobs COUNT] | --seed SEED [--trace]\n",
      stderr);
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--trace" || flag == "--elastic") {
      (flag == "--trace" ? arguments.trace : arguments.elastic) = true;
      continue;
    }
    uint64_t value = 0;
    if (i + 1 == argc) usage();
    const char* text = argv[++i];
    const auto parsed = std::from_chars(text, text + std::strlen(text), value);
    if (parsed.ec != std::errc() || *parsed.ptr != '\0') usage();
    if (flag == "--seeds") {
      arguments.seeds = value;
    } else if (flag == "--from") {
      arguments.from = value;
    } else if (flag == "--jobs" && value >= 1 && value <= kMaxJobs) {
      arguments.jobs = value;
    } else if (flag == "--seed") {
      arguments.single = true;
      arguments.from = value;
      arguments.seeds = 1;
    } else {
      usage();
    }
  }
  return arguments;
}

std::string replay(const Arguments& arguments, uint64_t seed) {
  return std::string("replay: bps_sim ") + (arguments.elastic ? "--elastic " : "") + "--seed " +
         std::to_string(seed) + " --trace\n";
}

// Runs the scenario of one seed; prints what is wrong with it. Returns whether it passed.
template <typename OneScenario>
bool run_scenario(const OneScenario& scenario, const Arguments& arguments) {
  const bool show_trace = arguments.trace;
  RunResult result = run(scenario, show_trace);
  const bool passed = result.findings.empty();
  if (passed && !show_trace) return true;
  if (!passed && !show_trace) result = run(scenario, true);
  std::string text = describe(scenario) + "\n";
  const size_t skipped =
      show_trace || result.trace.size() < kShownTraceLines ? 0 : result.trace.size() - kShownTraceLines;
  if (skipped > 0) text += "  ... " + std::to_string(skipped) + " lines more with --trace\n";
  for (size_t i = skipped; i < result.trace.size(); ++i) text += "  " + result.trace[i] + "\n";
  for (size_t i = 0; i < result.findings.size() && i < kShownFindings; ++i) {
    text += "FINDING " + result.findings[i] + "\n";
  }
  if (!passed) text += replay(arguments, scenario.seed);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return passed;
}

bool run_seed(uint64_t seed, const Arguments& arguments) {
  return arguments.elastic ? run_scenario(make_elastic_scenario(seed), arguments)
                           : run_scenario(make_scenario(seed), arguments);
}

std::string describe_seed(uint64_t seed, const Arguments& arguments) {
  return arguments.elastic ? describe(make_elastic_scenario(seed)) : describe(make_scenario(seed));
}

// Memory that the processes of a run share, so that a seed that ends its process (a failed
// BPS_CHECK) is known.
struct Progress {
  std::atomic<uint64_t> next{0};  // number of seeds taken
  std::atomic<uint64_t> failed{0};
  std::atomic<uint64_t> current[kMaxJobs];  // seed of each job
};

pid_t fork_job(Progress& progress, size_t job, const Arguments& arguments) {
  const pid_t pid = fork();
  BPS_CHECK(pid >= 0) << "fork failed";
  if (pid > 0) return pid;
  while (true) {
    const uint64_t taken = progress.next.fetch_add(1);
    if (taken >= arguments.seeds) std::_Exit(0);
    progress.current[job] = arguments.from + taken;
    if (!run_seed(arguments.from + taken, arguments)) ++progress.failed;
  }
}

uint64_t run_jobs(const Arguments& arguments) {
  void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BPS_CHECK(shared != MAP_FAILED) << "no shared memory";
  Progress& progress = *new (shared) Progress;
  std::vector<pid_t> jobs;
  for (size_t job = 0; job < arguments.jobs; ++job) jobs.push_back(fork_job(progress, job, arguments));
  for (size_t job = 0; job < jobs.size(); ++job) {
    int status = 0;
    while (waitpid(jobs[job], &status, 0) == jobs[job] && status != 0) {
      const uint64_t seed = progress.current[job];
      std::printf("%s\nCRASHED with wait status %d\n%s", describe_seed(seed, arguments).c_str(), status,
                  replay(arguments, seed).c_str());
      std::fflush(stdout);
      ++progress.failed;
      jobs[job] = fork_job(progress, job, arguments);
    }
  }
  return progress.failed;
}

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  log::set_level(arguments.single && arguments.trace ? log::Level::kInfo : log::Level::kError);
  const uint64_t failed = arguments.single ? !run_seed(arguments.from, arguments) : run_jobs(arguments);
  std::printf("%llu passed, %llu failed\n", static_cast<unsigned long long>(arguments.seeds - failed),
              static_cast<unsigned long long>(failed));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace byteps::sim

int main(int argc, char** argv) { return byteps::sim::main(argc, argv); }
