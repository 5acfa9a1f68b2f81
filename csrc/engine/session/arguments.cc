#include "engine/session/arguments.h"

#include <string>

namespace perseus {

namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, request.label() + ": " + why);
}

void check_has_rows(const Request& request) {
  for (const auto& member : request.members) {
    if (member.shape.empty()) refuse(request, "a 0-dim tensor has no first dimension; reshape it to (1,)");
  }
}

void check_is_floating(const Request& request) {
  for (const auto& member : request.members) {
    if (!is_floating(member.dtype)) {
      refuse(request,
             "the tensor is of type " + std::string(name_of(member.dtype)) + ", and Adasum is for floating types");
    }
  }
}

void check_root(const Request& request, int ranks) {
  if (request.root >= 0 && request.root < ranks) return;
  refuse(request, "root " + std::to_string(request.root) + " is not a rank of the process set, which has " +
                      std::to_string(ranks));
}

void check_splits(WorkItem& work, int ranks) {
  const auto& request = work.request;
  if (request.members.size() != 1) refuse(request, "one tensor is needed");
  if (request.checked && work.expected.size() != static_cast<std::size_t>(ranks)) {
    refuse(request, std::to_string(work.expected.size()) + " expected counts for " + std::to_string(ranks) + " ranks");
  }
  const auto rows = request.members.front().shape.front();
  if (work.splits.empty()) {
    if (rows % ranks != 0) {
      refuse(request, std::to_string(rows) + " rows cannot be divided evenly among " + std::to_string(ranks) +
                          " ranks; pass splits");
    }
    work.splits.assign(static_cast<std::size_t>(ranks), rows / ranks);
    return;
  }
  if (work.splits.size() != static_cast<std::size_t>(ranks)) {
    refuse(request, std::to_string(work.splits.size()) + " splits for " + std::to_string(ranks) + " ranks");
  }
  std::int64_t total = 0;
  for (const auto split : work.splits) {
    if (split < 0) refuse(request, "a split is negative");
    total += split;
  }
  if (total > rows) {
    refuse(request, "splits add up to " + std::to_string(total) + " rows, the tensor has " + std::to_string(rows));
  }
}

}  // namespace

void check_arguments(WorkItem& work, int ranks) {
  const auto& request = work.request;
  if (request.verb == Verb::adasum) check_is_floating(request);
  if (request.verb == Verb::broadcast) check_root(request, ranks);
  if (results_of(request.verb) == Results::other_rows) check_has_rows(request);
  if (request.verb == Verb::alltoall) check_splits(work, ranks);
}

}  // namespace perseus
