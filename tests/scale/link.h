// Measures the times of a message between two hosts, and derives the time of a step from them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace perseus::scale {

using Microseconds = std::chrono::duration<double, std::micro>;

// Times of one message of the negotiation.
struct LinkTimes {
  Microseconds delay{0};    // from the end of its send to the time at which the receiver can take it
  Microseconds send{0};     // of the sender's processor
  Microseconds receive{0};  // of the receiver's processor
};

// Measures the control channel between the two ranks of a job that an mpirun has started. `launcher` is a name of
// LauncherKind, and `python_prefix` a folder in which an MPI may be. Returns nothing on rank 1. Throws Error.
std::optional<LinkTimes> measure_link(const std::string& launcher, const std::string& python_prefix);

// Returns the time from when the leaders of all hosts submit a known request until the last one has the decision. Each
// leader handles one message after the other.
Microseconds predicted_step(int hosts, const LinkTimes& link);

}  // namespace perseus::scale
