// Fuzzes the bytes that ranks without an mpirun exchange through a store before and after MPI_Init.
#include "base/error.h"
#include "fuzz_input.h"
#include "transport/mpi/world_agreement.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  MpiRendezvous rendezvous;
  rendezvous.host_names = {"a", "b", "c"};
  rendezvous.exchange = [&](std::string_view mine) {
    return std::vector<std::string>{std::string(mine), input.text(), input.text()};
  };
  try {
    mpi::agree(rendezvous, {.version = "MPICH 5", .fresh_world = "w"});
    mpi::check_outcome(rendezvous, "");
  } catch (const Error&) {
  }
  return 0;
}
