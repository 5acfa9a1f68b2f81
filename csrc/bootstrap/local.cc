#include "bootstrap/local.h"

namespace perseus {

namespace {

// In front, so that it becomes part of the socket's name and not only of the secret.
std::string address_of(const LocalJob& job) {
  if (job.address.empty()) return {};
  return std::to_string(job.generation) + '-' + job.address;
}

}  // namespace

LocalBootstrap::LocalBootstrap(const LocalJob& job) : star_(address_of(job), job.rank, job.size, job.start_timeout) {}

}  // namespace perseus
