// Prints lines of JSON: what a job of many ranks costs, what a message takes, or how long a step takes. See
// docs/scale.md.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "link.h"
#include "situations.h"

namespace perseus::scale {
namespace {

constexpr int kTensors = 300, kSets = 200;

void print(int ranks, const Situation& found) {
  std::printf(
      "{\"situation\": \"%s\", \"ranks\": %d, \"messages\": %d, \"other_messages\": %d, \"connections\": %d, "
      "\"other_connections\": %d, \"bytes\": %zu, \"microseconds\": %.1f}\n",
      found.name, ranks, found.root.messages(), found.other_messages, found.connections, found.other_connections,
      found.root.bytes(), Microseconds(found.root.time).count());
  std::fflush(stdout);
}

void print_situations(int ranks) {
  for (const auto& found : steps(ranks, kTensors)) print(ranks, found);
  for (const auto& found : one_straggler(ranks, kTensors)) print(ranks, found);
  print(ranks, one_dead_rank(ranks));
  print(ranks, one_stopped_rank(ranks));
  print(ranks, start(ranks));
  print(ranks, start_of_watch(ranks));
  print(ranks, shutdown(ranks));
  print(ranks, process_sets(ranks, kSets));
}

void print_link(const char* launcher, const char* python_prefix) {
  const auto times = measure_link(launcher, python_prefix);
  if (!times) return;
  std::printf("{\"delay\": %.2f, \"send\": %.2f, \"receive\": %.2f}\n", times->delay.count(), times->send.count(),
              times->receive.count());
}

void print_prediction(const LinkTimes& link) {
  for (const int hosts : {2, 4, 8, 16, 64, 256, 1024, 4096}) {
    std::printf("{\"hosts\": %d, \"microseconds\": %.1f}\n", hosts, predicted_step(hosts, link).count());
  }
}

int run(int count, char** words) {
  const std::string command = count > 1 ? words[1] : "";
  if (command == "situations" && count > 2) {
    for (int i = 2; i < count; ++i) print_situations(std::atoi(words[i]));
  } else if (command == "link" && count == 4) {
    print_link(words[2], words[3]);
  } else if (command == "step" && count == 5) {
    print_prediction(
        {Microseconds(std::atof(words[2])), Microseconds(std::atof(words[3])), Microseconds(std::atof(words[4]))});
  } else {
    std::fprintf(stderr, "usage: %s situations RANKS... | link LAUNCHER PREFIX | step DELAY SEND RECEIVE\n", words[0]);
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace perseus::scale

int main(int count, char** words) {
  try {
    return perseus::scale::run(count, words);
  } catch (const perseus::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
