#include "transport/mpi/bootstrap.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/connections.h"
#include "transport/mpi/process.h"

namespace perseus::mpi {

namespace {

// Many ranks may start on few cores. A poll of an MPI costs tens of microseconds, which the ranks that connect need.
constexpr std::chrono::microseconds kLongestSleep{5'000};

}  // namespace

MpiBootstrap::MpiBootstrap(Api& api, Comm comm, std::chrono::milliseconds limit)
    : api_(api),
      comm_(comm),
      communicator_(make_network(api, {comm}), {.limit = limit, .longest_sleep = kLongestSleep}) {}

std::vector<std::string> MpiBootstrap::allgather(std::string_view mine) {
  const auto ranks = static_cast<std::size_t>(size());
  LentVector<std::int64_t> lengths(ranks);
  lengths[0] = static_cast<std::int64_t>(mine.size());
  communicator_.gather_small(lengths.data(), std::vector<std::int64_t>(ranks, sizeof(std::int64_t)));
  std::vector<std::size_t> order(ranks);  // the rank of each block
  std::vector<std::int64_t> by_rank(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    order[i] = static_cast<std::size_t>(communicator_.rank_ahead(static_cast<int>(i)));
    by_rank[order[i]] = lengths[i];
  }

  LentVector<char> all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})));
  std::copy(mine.begin(), mine.end(), all.begin());
  communicator_.gather_small(all.data(), by_rank);
  std::vector<std::string> parts(ranks);
  const auto* block = all.data();
  for (std::size_t i = 0; i < ranks; ++i) {
    parts[order[i]].assign(block, static_cast<std::size_t>(lengths[i]));
    block += lengths[i];
  }
  return parts;
}

}  // namespace perseus::mpi

namespace perseus {

std::unique_ptr<Bootstrap> make_mpi_bootstrap(const MpiJob& job) {
  auto& api = mpi::start(job);
  const auto make = [api = &api, ranks = job.selection] { return mpi::communicator_of(*api, ranks); };
  try {
    const auto comm = mpi::run_abandonable<mpi::Comm>(make, nullptr, {.limit = job.start_timeout});
    return std::make_unique<mpi::MpiBootstrap>(api, comm, job.start_timeout);
  } catch (const Error& error) {
    if (mpi::may_still_run(error)) mpi::mark_broken(error.what());
    throw;
  }
}

}  // namespace perseus
