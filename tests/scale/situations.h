// Situations of a job of many ranks and their costs: the rows of the table of docs/scale.md.
#pragma once

#include <chrono>
#include <vector>

#include "cost.h"

namespace perseus::scale {

struct Situation {
  const char* name;
  Cost root = {};             // of rank 0; without its peers
  int connections = 0;        // of rank 0
  int other_messages = 0;     // the most of any other rank
  int other_connections = 0;  // the most of any other rank
};

// Every host has this number of ranks, unless a function says otherwise.
inline constexpr int kRanksPerHost = 8;

// All ranks submit `tensors` tensors: for the first time, and once all of them have ids.
std::vector<Situation> steps(int ranks, int tensors);
// All ranks but the last one submit `tensors` tensors: a check for stalls, and the check after the time of the warning.
std::vector<Situation> one_straggler(int ranks, int tensors);
// The last rank ends without a shutdown. The connections of the watch are sockets here, and all ranks have threads.
Situation one_dead_rank(int ranks);
// The last rank is stopped, and all others wait for it in a collective: they ask for the ranks that do not run.
Situation one_stopped_rank(int ranks);
// The start: all ranks exchange bytes and connect by MPI, each rank as if on a host of its own, in a thread.
Situation start(int ranks);
// The start of the watch between hosts. Its sockets are real; the first rank of each host has a thread.
Situation start_of_watch(int ranks);
// All ranks leave: their shutdown messages, and the end of their control channels.
Situation shutdown(int ranks);
// A step of one tensor in each of `sets` process sets of all ranks.
Situation process_sets(int ranks, int sets);

}  // namespace perseus::scale
