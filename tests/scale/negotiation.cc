// Prints what the negotiation costs at many ranks, a row of Markdown for each number of ranks. See docs/scale.md.
#include <cstdio>
#include <cstdlib>

#include "negotiating_job.h"

namespace perseus::scale {
namespace {

using std::chrono::milliseconds;

constexpr int kRanksPerHost = 8, kTensors = 300, kSteps = 5;

double us(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1000; }

void print_row(int size) {
  NegotiatingJob job(size, kRanksPerHost, {.stall_warning = milliseconds(60000)});
  const auto tensors = layers(kTensors);
  const auto step = [&](int ranks) {
    job.reset_costs();
    for (int rank = ranks - 1; rank >= 0; --rank) job.submit(rank, tensors);
    return job.settle();
  };
  const auto require = [](bool is_right) {
    if (!is_right) std::abort();
  };
  require(step(size) == kTensors);
  const auto first = job.root();
  std::chrono::nanoseconds steady = std::chrono::hours(1);
  for (int i = 0; i < kSteps; ++i) {
    require(step(size) == kTensors);
    steady = std::min(steady, job.root().time);
  }
  const auto root = job.root(), busiest = job.busiest();
  const int rounds = job.rounds();
  // All ranks but the last one submit.
  require(step(size - 1) == 0);
  std::chrono::nanoseconds waiting{0};
  for (int i = 0; i < 10; ++i) {
    job.now += milliseconds(100);
    waiting = std::max(waiting, job.check_stalls());
    job.settle();
  }
  job.now += milliseconds(60000);
  job.reset_costs();
  auto warning = job.check_stalls();
  job.settle();
  warning += job.check_stalls();
  job.settle();
  std::printf("| %d | %d | %zu | %.0f | %d | %zu | %.0f | %d | %.0f | %.0f | %.0f |\n", size, root.messages(),
              root.bytes(), us(steady), busiest.messages(), first.bytes(), us(first.time), rounds, us(waiting),
              us(warning), us(job.root().time));
  std::fflush(stdout);
}

}  // namespace
}  // namespace perseus::scale

int main(int count, char** sizes) {
  std::printf(
      "| ranks | messages | bytes | µs | another rank | first step: bytes | µs | rounds | check: µs | warning: µs | "
      "all "
      "of it: µs |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 1; i < count; ++i) perseus::scale::print_row(std::atoi(sizes[i]));
}
