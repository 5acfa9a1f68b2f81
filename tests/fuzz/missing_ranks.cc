// Fuzzes missing-rank queries, which engines and the stall watch send to each other.
#include <chrono>

#include "base/error.h"
#include "fuzz_input.h"
#include "stall/missing_rank_query.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  MissingRankQuery query(
      input.below(4), {-1, 0, 0, 2},
      [](const ProgressPoint& point) {
        return point.number < 2 || point.name == "g" ? Progress::reached : Progress::behind;
      },
      std::chrono::milliseconds(2000), 2);
  if (input.below(2) == 0) query.set_neighbours({0, 2, 3});
  MissingRankQuery::Clock::time_point now;
  query.ask({1, 1}, {0, 1, 2, 3}, now);
  query.ask({.name = "g"}, {0, 1, 2, 3}, now);
  try {
    while (!input.empty()) {
      const int from = input.below(4);
      query.receive(from, input.text(), now);
      now += std::chrono::seconds(1);
      query.look(now);
      query.take_messages();
      query.take_verdicts();
    }
  } catch (const Error&) {
  }
  return 0;
}
