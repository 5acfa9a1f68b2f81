// Fuzzes what ranks without an mpirun tell each other through a store before and after MPI_Init.
#include "base/error.h"
#include "fuzz_input.h"
#include "transport/mpi/offers.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  MpiMeeting meeting;
  meeting.host_names = {"a", "b", "c"};
  meeting.exchange = [&](std::string_view mine) {
    return std::vector<std::string>{std::string(mine), input.text(), input.text()};
  };
  try {
    mpi::agree(meeting, {.version = "MPICH 5", .fresh_world = "w"});
    mpi::check_outcome(meeting, "");
  } catch (const Error&) {
  }
  return 0;
}
