// Fuzzes the queries for missing ranks: those of the control channel, and those of the liveness connections.
#include <array>
#include <chrono>

#include "base/error.h"
#include "control/missing_rank_query.h"
#include "control/progress_probe.h"
#include "fuzz_input.h"

using namespace perseus;

namespace {

void fuzz_control_channel(FuzzInput& input) {
  const std::array<int, 4> hosts{0, 0, 1, 1};
  const auto tree = make_tree(input.below(4), hosts, {0, 1, 2, 3});
  MissingRankQuery queries(tree, [](const std::string& name) { return name == "g"; });
  MissingRankQuery::Clock::time_point now;
  queries.ask(1, "g", now);
  while (!input.empty()) {
    const auto bytes = input.text();
    if (MissingRankQuery::is_of(bytes)) queries.hear(bytes, now);
    now += std::chrono::seconds(1);
    queries.look(now);
    queries.take_messages();
    queries.take_results();
  }
}

void fuzz_liveness_connections(FuzzInput& input) {
  ProgressProbe queries(
      input.below(4), {-1, 0, 0, 2},
      [](const ProgressPoint& place) { return place.number < 2 ? Progress::reached : Progress::behind; },
      std::chrono::milliseconds(2000));
  queries.set_neighbours({0, 2, 3});
  ProgressProbe::Clock::time_point now;
  queries.ask({1, 1}, {0, 1, 2, 3}, now);
  while (!input.empty()) {
    const int from = input.below(4);
    queries.hear(from, input.text(), now);
    now += std::chrono::seconds(1);
    queries.look(now);
    queries.take_messages();
    queries.take_verdicts();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  try {
    if (input.below(2) == 0) {
      fuzz_control_channel(input);
    } else {
      fuzz_liveness_connections(input);
    }
  } catch (const Error&) {
  }
  return 0;
}
