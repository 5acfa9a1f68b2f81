// Fuzzes the PMI-1 server: the lines of the local MPI library, and the bytes that other ranks contribute to a barrier.
#include "transport/mpi/pmi.h"

#include "base/error.h"
#include "fuzz_input.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  mpi::PmiAnswers answers({0, 0, 1}, "job", [&](std::string_view mine) {
    return std::vector<std::string>{std::string(mine), input.text(), input.text()};
  });
  try {
    while (!input.empty()) answers.answer(input.text());
  } catch (const Error&) {
  }
  return 0;
}
