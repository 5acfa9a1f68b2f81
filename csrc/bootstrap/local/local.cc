#include "bootstrap/local/local.h"

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

// Each session of a job has another address.
std::string address_of(const LocalJob& job) {
  if (job.address.empty()) return {};
  const auto generation = std::to_string(job.generation) + '-';
  if (selects_all(job.selection, job.size)) return generation + job.address;
  return generation + mark_of(job.selection) + '-' + job.address;
}

int rank_of(const LocalJob& job) {
  return selects_all(job.selection, job.size) ? job.rank : rank_in_selection(job.selection, job.rank, job.size);
}

int size_of(const LocalJob& job) { return job.selection.empty() ? job.size : static_cast<int>(job.selection.size()); }

}  // namespace

LocalBootstrap::LocalBootstrap(const LocalJob& job)
    : rendezvous_(std::make_shared<LocalRendezvous>(address_of(job), rank_of(job), size_of(job), job.start_timeout)) {}

}  // namespace perseus
