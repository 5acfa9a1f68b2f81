#include "transport/mpi/world_agreement.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// Writes one line per member; the problem, which may have several lines, is the last.
std::string written(const RankState& state) {
  return state.version.substr(0, state.version.find('\n')) + '\n' + state.world + '\n' +
         std::to_string(state.rank_in_world) + '\n' + state.fresh_world + '\n' + state.problem;
}

// Returns nothing unless `text` has the format of written().
std::optional<RankState> read(const std::string& text) {
  RankState state;
  std::istringstream lines(text);
  std::string number;
  for (auto* line : {&state.version, &state.world, &number, &state.fresh_world}) {
    if (!std::getline(lines, *line) || lines.eof()) return {};
  }
  std::getline(lines, state.problem, '\0');
  const auto* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, state.rank_in_world);
  if (error != std::errc() || stop != end || state.rank_in_world < -1) return {};
  if (state.world.empty() != (state.rank_in_world == -1) || state.fresh_world.empty()) return {};
  return state;
}

std::string name_of(const MpiRendezvous& rendezvous, std::size_t rank) {
  return "rank " + std::to_string(rank) + " on " + rendezvous.host_names[rank];
}

Error unusable(const std::string& why) {
  return {ErrorKind::unavailable,
          "the ranks meet by a store, no mpirun has started them, and what lies between "
          "their hosts is for MPI: " +
              why};
}

Error unreadable(const std::string& rank, std::size_t bytes) {
  return {ErrorKind::transport, "the ranks start MPI by a store: " + rank + " sent " + std::to_string(bytes) +
                                    " bytes that do not describe its MPI. Install the same version of perseus_like on "
                                    "all hosts, and let no other program write to this store"};
}

template <class Member>
std::size_t first_other(const std::vector<RankState>& states, Member member) {
  const auto differs = [&](const RankState& state) { return state.*member != states.front().*member; };
  return static_cast<std::size_t>(std::find_if(states.begin(), states.end(), differs) - states.begin());
}

}  // namespace

Agreed agree(const MpiRendezvous& rendezvous, const RankState& mine) {
  std::vector<RankState> states;
  for (const auto& text : rendezvous.exchange(written(mine))) {
    auto state = read(text);
    if (!state) throw unreadable(name_of(rendezvous, states.size()), text.size());
    states.push_back(std::move(*state));
  }
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    if (!states[rank].problem.empty()) throw unusable(name_of(rendezvous, rank) + ": " + states[rank].problem);
  }
  const auto& first = states.front();
  if (const auto other = first_other(states, &RankState::version); other < states.size()) {
    throw unusable(name_of(rendezvous, 0) + " has " + first.version + ", " + name_of(rendezvous, other) + " has " +
                   states[other].version + ". Install the same MPI on all hosts");
  }
  if (const auto other = first_other(states, &RankState::world); other < states.size()) {
    throw unusable(name_of(rendezvous, 0) + " and " + name_of(rendezvous, other) +
                   " have not been in the same jobs before, and MPI starts once in a process. Start new processes");
  }
  Agreed agreed{first.world.empty() ? first.fresh_world : first.world, {}};
  if (first.world.empty()) return agreed;
  for (const auto& state : states) agreed.ranks.push_back(state.rank_in_world);
  return agreed;
}

void check_outcome(const MpiRendezvous& rendezvous, const std::string& failure) {
  const auto failures = rendezvous.exchange(failure);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) throw unusable(name_of(rendezvous, rank) + ": " + failures[rank]);
  }
}

}  // namespace perseus::mpi
