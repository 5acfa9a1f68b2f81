#include "bootstrap/local.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "bootstrap/selection.h"

namespace perseus {

namespace {

// Returns eight digits that identify a selection, because groups of one job that start at the same time need different
// sockets.
std::string mark_of(const std::vector<int>& selection) {
  std::uint32_t hash = 2166136261;  // FNV-1a
  for (const int rank : selection) hash = (hash ^ static_cast<std::uint32_t>(rank)) * 16777619;
  std::array<char, 8> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), hash, 16).ptr;
  return {digits.data(), end};
}

// The marks are in front, so that they are in the socket's name and not only in the secret. They are also at the end,
// so that the name keeps its number of random digits.
std::string address_of(const LocalJob& job) {
  if (job.address.empty()) return {};
  const auto generation = std::to_string(job.generation) + '-';
  if (selects_all(job.selection, job.size)) return generation + job.address;
  const auto mark = mark_of(job.selection);
  return generation + mark + '-' + job.address + '-' + mark;
}

int rank_of(const LocalJob& job) {
  return selects_all(job.selection, job.size) ? job.rank : rank_in_selection(job.selection, job.rank, job.size);
}

int size_of(const LocalJob& job) { return job.selection.empty() ? job.size : static_cast<int>(job.selection.size()); }

}  // namespace

LocalBootstrap::LocalBootstrap(const LocalJob& job)
    : rendezvous_(address_of(job), rank_of(job), size_of(job), job.start_timeout) {}

}  // namespace perseus
