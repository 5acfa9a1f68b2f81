// Measures how fast ranks of one host reduce, and in the same run plain copies of the same bytes by all ranks at once.
// `make bench-transport BENCH_ARGS="[ranks] [most MiB] [seconds per row] [chunk KiB]"` prints medians in microseconds
// and ratios to the better copy.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "bootstrap/local/local.h"
#include "device/host/kernels.h"
#include "transport/fabric.h"

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

struct Way {
  const char* name;
  std::function<Status(std::size_t bytes)> run;
  std::vector<double> times;  // seconds
};

double median(std::vector<double>& times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void measure(Transport& transport, std::vector<Way>& ways, std::size_t bytes, double seconds) {
  for (auto& way : ways) way.times.clear();
  const auto run = [&](Way& way) {
    transport.barrier().throw_if_failed();
    const auto begin = Clock::now();
    way.run(bytes).throw_if_failed();
    transport.barrier().throw_if_failed();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  // Rank 0 estimates the number of rounds and broadcasts it, so that all ranks make the same number.
  double round = 0;
  for (int warm = 0; warm < 2; ++warm) {
    round = 0;
    for (auto& way : ways) round += run(way);
  }
  double rounds = std::clamp(seconds / round, 5.0, 2000.0);
  transport.broadcast(std::vector<Piece>{{&rounds, sizeof rounds}}, 0).throw_if_failed();
  // A training job also does the same work several times in a row. The first two times, which do not count, fill the
  // caches.
  constexpr int kRow = 8;
  for (int i = 0; i < static_cast<int>(rounds); i += kRow) {
    for (auto& way : ways) {
      for (int k = 0; k < 2; ++k) run(way);
      for (int k = 0; k < kRow; ++k) way.times.push_back(run(way));
    }
  }
}

void print(const std::vector<Way>& all, std::size_t bytes) {
  auto ways = all;
  const double barrier = median(ways[0].times);
  const double copy = std::min(median(ways[1].times), median(ways[2].times));
  if (bytes >= 1 << 20) {
    std::printf("%7zu KiB", bytes >> 10);
  } else {
    std::printf("%9zu B ", bytes);
  }
  for (auto& way : ways) {
    // Each time includes a barrier, which a copy and a reduction do not need.
    const double time = median(way.times) - (&way == &ways[0] ? 0.0 : barrier);
    std::printf("  %s %9.2f (%5.2f)", way.name, time * 1e6, time / (copy - barrier));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void run_rank(int rank, int size, const std::string& address, std::size_t most, double seconds, std::size_t chunk) {
  LocalBootstrap bootstrap({.rank = rank, .size = size, .address = address});
  Liveness liveness;
  const auto topology = Topology::discover(bootstrap);
  FabricOptions options;
  options.chunk_bytes = chunk;
  const auto fabric = make_fabric(bootstrap, topology, liveness, options);
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  auto link = fabric->connect(members, [&](std::string_view mine) { return bootstrap.allgather(mine); });
  auto& transport = *link.transport;

  auto* in = static_cast<std::byte*>(std::aligned_alloc(4096, most));
  auto* out = static_cast<std::byte*>(std::aligned_alloc(4096, most));
  auto* arena = static_cast<std::byte*>(fabric->allocate(most));
  for (auto* memory : {in, out, arena}) std::memset(memory, 0, most);
  const auto reduce = [&](void* from, void* to, std::size_t bytes) {
    const Piece a{from, static_cast<std::int64_t>(bytes / 4)}, b{to, static_cast<std::int64_t>(bytes / 4)};
    return transport.allreduce({}, {&a, 1}, {&b, 1});
  };
  std::vector<Way> ways = {
      {"barrier", [&](std::size_t) { return Status(); }, {}},
      {"memcpy",
       [&](std::size_t n) {
         std::memcpy(out, in, n);
         return Status();
       },
       {}},
      {"streaming",
       [&](std::size_t n) {
         host::copy(out, in, n, host::Store::streaming);
         return Status();
       },
       {}},
      {"arena", [&](std::size_t n) { return reduce(arena, arena, n); }, {}},
      {"private", [&](std::size_t n) { return reduce(in, out, n); }, {}},
      {"in place", [&](std::size_t n) { return reduce(in, in, n); }, {}},
  };
  for (std::size_t bytes = 4; bytes <= most; bytes *= bytes < (1 << 20) ? 4 : 2) {
    measure(transport, ways, bytes, seconds);
    if (rank == 0) print(ways, bytes);
  }
  fabric->say_goodbye();
}

int main_of(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto most = static_cast<std::size_t>(argc > 2 ? std::atoi(argv[2]) : 64) << 20;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 1.0;
  const auto chunk = static_cast<std::size_t>(argc > 4 ? std::atoi(argv[4]) : 0) << 10;
  const auto address = random_star_address();
  for (int rank = 0; rank < size; ++rank) {
    if (fork() != 0) continue;
    try {
      run_rank(rank, size, address, most, seconds, chunk);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      _exit(1);
    }
    _exit(0);
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace perseus

int main(int argc, char** argv) { return perseus::main_of(argc, argv); }
