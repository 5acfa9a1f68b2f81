#include "transport/mpi/offers.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// A line each; the problem, which may have several, comes last.
std::string written(const Offer& offer) {
  return offer.version.substr(0, offer.version.find('\n')) + '\n' + offer.world + '\n' +
         std::to_string(offer.rank_in_world) + '\n' + offer.fresh_world + '\n' + offer.problem;
}

// Nothing unless `text` has the form that `written` gives.
std::optional<Offer> read(const std::string& text) {
  Offer offer;
  std::istringstream lines(text);
  std::string number;
  for (auto* line : {&offer.version, &offer.world, &number, &offer.fresh_world}) {
    if (!std::getline(lines, *line) || lines.eof()) return {};
  }
  std::getline(lines, offer.problem, '\0');
  const auto* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, offer.rank_in_world);
  if (error != std::errc() || stop != end || offer.rank_in_world < -1) return {};
  if (offer.world.empty() != (offer.rank_in_world == -1) || offer.fresh_world.empty()) return {};
  return offer;
}

std::string name_of(const MpiMeeting& meeting, std::size_t rank) {
  return "rank " + std::to_string(rank) + " on " + meeting.host_names[rank];
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
std::size_t first_other(const std::vector<Offer>& offers, Member member) {
  const auto differs = [&](const Offer& offer) { return offer.*member != offers.front().*member; };
  return static_cast<std::size_t>(std::find_if(offers.begin(), offers.end(), differs) - offers.begin());
}

}  // namespace

Agreed agree(const MpiMeeting& meeting, const Offer& mine) {
  std::vector<Offer> offers;
  for (const auto& text : meeting.exchange(written(mine))) {
    auto offer = read(text);
    if (!offer) throw unreadable(name_of(meeting, offers.size()), text.size());
    offers.push_back(std::move(*offer));
  }
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (!offers[rank].problem.empty()) throw unusable(name_of(meeting, rank) + ": " + offers[rank].problem);
  }
  const auto& first = offers.front();
  if (const auto other = first_other(offers, &Offer::version); other < offers.size()) {
    throw unusable(name_of(meeting, 0) + " has " + first.version + ", " + name_of(meeting, other) + " has " +
                   offers[other].version + ". Install the same MPI on all hosts");
  }
  if (const auto other = first_other(offers, &Offer::world); other < offers.size()) {
    throw unusable(name_of(meeting, 0) + " and " + name_of(meeting, other) +
                   " have not been in the same jobs before, and MPI starts once in a process. Start new processes");
  }
  Agreed agreed{first.world.empty() ? first.fresh_world : first.world, {}};
  if (first.world.empty()) return agreed;
  for (const auto& offer : offers) agreed.ranks.push_back(offer.rank_in_world);
  return agreed;
}

void check_outcome(const MpiMeeting& meeting, const std::string& failure) {
  const auto failures = meeting.exchange(failure);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) throw unusable(name_of(meeting, rank) + ": " + failures[rank]);
  }
}

}  // namespace perseus::mpi
