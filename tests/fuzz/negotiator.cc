// Fuzzes a negotiator with messages of its neighbours in the tree, at the root and at a leaf of four ranks.
#include "control/negotiator.h"

#include <array>
#include <chrono>

#include "base/error.h"
#include "fuzz_input.h"

using namespace perseus;

namespace {

Request own_request() {
  Request request;
  request.name = "g";
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const std::array<int, 4> hosts{0, 0, 1, 1};
  const int rank = input.below(4);
  const auto tree = make_tree(rank, hosts, {0, 1, 2, 3});
  const bool is_leaf = tree.children.empty();
  Negotiator negotiator(tree, {.cache_capacity = 16, .stalls = {.warning = std::chrono::milliseconds(100)}});
  Negotiator::Clock::time_point now;
  try {
    negotiator.submit(own_request(), now);
    while (!input.empty()) {
      const auto children = tree.children.size();
      const auto choice = static_cast<std::size_t>(input.below(static_cast<int>(children) + 1));
      const bool from_parent = is_leaf || (choice == children && !tree.is_root());
      const int from = from_parent ? tree.parent : tree.children[choice % children];
      negotiator.receive(from, input.text(), now);
      now += std::chrono::milliseconds(60);
      negotiator.check_stalls(now);
      negotiator.flush(now);
      while (!negotiator.take_decisions().empty()) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
