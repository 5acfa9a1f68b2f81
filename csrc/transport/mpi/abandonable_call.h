// Makes MPI calls that wait for other ranks and cannot check whether they live. Such a call runs on its own thread,
// which is abandoned if a rank is lost. Used for ranks without an mpirun, which would otherwise end them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>

#include "base/error.h"
#include "base/thread.h"
#include "bootstrap/liveness.h"

namespace perseus::mpi {

// Runs `call` on a new thread and returns or throws what it does. `call` must own everything it uses. Throws
// Error(peer_lost) if a rank is lost, and Error(timed_out) after `limit` (0: none).
template <class Result>
Result run_abandonable(const std::function<Result()>& call, const Liveness* liveness, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kPollInterval{50};
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  start_thread([call, promise] {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  while (result.wait_for(kPollInterval) != std::future_status::ready) {
    if (liveness != nullptr) liveness->status().throw_if_failed();
    if (limit.count() == 0 || std::chrono::steady_clock::now() - begin < limit) continue;
    throw Error(ErrorKind::timed_out,
                "MPI's communicators were not created within " + std::to_string(limit.count() / 1000) +
                    " s (PERSEUS_START_TIMEOUT). Check whether a rank has ended or a host is cut off from the network");
  }
  return result.get();
}

}  // namespace perseus::mpi
