// Calls of MPI that wait for other ranks and cannot look at whether these live: made on a thread of their own, which is
// left behind when a rank is lost. For ranks without an mpirun, which would end them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "base/error.h"
#include "bootstrap/liveness.h"

namespace perseus::mpi {

// What `call` returns or throws. It must own what it uses. Throws Error(peer_lost), and Error(timed_out) after `limit`
// (0: none).
template <class Result>
Result apart(const std::function<Result()>& call, const Liveness* liveness, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLook{50};
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  std::thread([call, promise] {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  while (result.wait_for(kLook) != std::future_status::ready) {
    if (liveness != nullptr) liveness->status().throw_if_failed();
    if (limit.count() == 0 || std::chrono::steady_clock::now() - begin < limit) continue;
    throw Error(ErrorKind::timed_out, "MPI's communicators are not made after " + std::to_string(limit.count() / 1000) +
                                          " s (PERSEUS_START_TIMEOUT): has a rank ended, or a host been cut off?");
  }
  return result.get();
}

}  // namespace perseus::mpi
