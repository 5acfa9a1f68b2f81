#include "transport/mpi/bootstrap.h"

#include <cstdint>

#include "base/error.h"
#include "base/lent_memory.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/data_movement.h"
#include "transport/mpi/process.h"

namespace perseus::mpi {

MpiBootstrap::MpiBootstrap(Api& api, Comm comm, std::chrono::milliseconds limit, const Liveness* liveness)
    : communicator_(api, comm, {.liveness = liveness, .limit = limit}) {}

std::vector<std::string> MpiBootstrap::allgather(std::string_view mine) {
  const auto ranks = static_cast<std::size_t>(size());
  LentVector<std::int64_t> blocks(ranks);
  std::vector<std::int64_t> lengths(ranks);
  blocks[0] = static_cast<std::int64_t>(mine.size());
  communicator_.gather_small(blocks.data(), sizeof(std::int64_t));
  std::int64_t total = 0;
  for (std::size_t i = 0; i < ranks; ++i) {
    lengths[(static_cast<std::size_t>(rank()) + i) % ranks] = blocks[i];
    total += blocks[i];
  }
  LentVector<char> all(static_cast<std::size_t>(total));
  mpi::allgather(communicator_, mine.data(), all.data(), lengths);

  std::vector<std::string> parts;
  std::size_t at = 0;
  for (const auto length : lengths) {
    parts.emplace_back(all.data() + at, static_cast<std::size_t>(length));
    at += static_cast<std::size_t>(length);
  }
  return parts;
}

}  // namespace perseus::mpi

namespace perseus {

std::unique_ptr<Bootstrap> make_mpi_bootstrap(const MpiJob& job) {
  auto ranks = job.selection;
  auto& api = job.rendezvous ? mpi::start_by_rendezvous(job, ranks) : mpi::start(job);
  const auto make = [api = &api, ranks] { return mpi::communicator_of(*api, ranks); };
  try {
    const auto* liveness = job.rendezvous ? job.rendezvous->liveness : nullptr;
    const auto comm = mpi::run_abandonable<mpi::Comm>(make, liveness, {.limit = job.start_timeout});
    return std::make_unique<mpi::MpiBootstrap>(api, comm, job.start_timeout, liveness);
  } catch (const Error& error) {
    if (mpi::may_still_run(error)) mpi::mark_broken(error.what());
    throw;
  }
}

}  // namespace perseus
